package ebpf

import (
	"errors"
	"time"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

// Path returns the experience of the connections of the instance at a link. The first call begins
// the measurement: it counts connections that the instance accepts from then on.
func (d *Driver) Path(ifindex int) pando.PathUse { return pathOf(d.objects.Paths, uint32(ifindex)) }

func pathOf(m *ebpf.Map, ifindex uint32) (out pando.PathUse) {
	var u steerPathUse
	err := m.Lookup(ifindex, &u)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		_ = m.Update(ifindex, u, ebpf.UpdateNoExist) // a full table: nothing is known of it
	}
	return pando.PathUse{
		RTT: time.Duration(u.RttUs) * time.Microsecond, Samples: u.Samples, Resent: u.Resent,
	}
}
