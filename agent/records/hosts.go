package records

import (
	"pando.run/pando"
	"pando.run/pando/world"
)

// FindHost returns a host that packets may go to, and whether it is here. A host that is away has
// no record: its membership has its address, and its programs steer on.
func (r *Records) FindHost(
	w *world.World, name pando.HostName,
) (h pando.Host, here bool) {
	if h, ok := w.Hosts[name]; ok {
		if !r.IsVouched(w, h.V) {
			return pando.Host{}, false
		}
		return h.V, true
	}
	m, ok := w.Members[name]
	if !ok {
		return h, false
	}
	v4, v6 := pando.InstanceRange(m.V.Slot)
	return pando.Host{
		Name: name, Slot: m.V.Slot, Address: m.V.Address, Address6: m.V.Address6, Instances4: v4,
		Instances6: v6, Tunnel: true,
	}, false
}

// IsVouched reports whether the addresses in a host's record match its membership. Packets go to
// the addresses in the record. The server writes the record of its own host itself.
func (r *Records) IsVouched(w *world.World, h pando.Host) bool {
	m, ok := w.Members[h.Name]
	if !ok || m.V.Server {
		return true
	}
	err := m.V.Vouches(h)
	if err != nil {
		r.log.Error("no packets go to a host", "host", h.Name, "error", err)
	}
	return err == nil
}
