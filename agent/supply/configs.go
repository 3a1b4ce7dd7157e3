package supply

import (
	"cmp"
	"net/netip"
	"slices"

	"pando.run/pando"
	"pando.run/pando/spec/config"
	"pando.run/pando/world"
)

// Templates renders the configs of one instance from the records of this host.
type Templates struct {
	of     *Supplier
	budget *config.Budget
}

// Templates returns a view of the records for the configs of one instance.
func (a *Supplier) Templates() Templates { return Templates{a, config.NewBudget()} }

// Render returns one config of an instance as a file.
func (t Templates) Render(
	i pando.Instance, spec pando.Spec, c pando.Config, secrets map[string][]byte,
) (pando.ConfigFile, error) {
	const everyone, programAlone = 0o444, 0o400
	file := pando.ConfigFile{Name: c.Name, Content: []byte(c.Text), Target: c.Target, Mode: c.Mode,
		Check: c.Check}
	mode := uint32(everyone)
	if c.Template {
		text, err := config.Parse(c.Name, c.Text)
		if err != nil {
			return file, err
		}
		file.Content, err = text.Render(t.facts(i, spec, secrets, text.Services()), t.budget)
		if err != nil {
			return file, err
		}
		if len(text.Secrets()) > 0 {
			mode = programAlone
		}
	}
	if file.Mode == 0 {
		file.Mode = mode
	}
	return file, nil
}

// ReadsSecrets reports whether a config may contain a secret.
func ReadsSecrets(c pando.Config) bool {
	t, err := config.Parse(c.Name, c.Text)
	return err == nil && len(t.Secrets()) > 0
}

// ListedMax is the largest number of instances of one service that a template lists.
const ListedMax = pando.EndpointsMax

// AddressesOf returns the addresses of a seat that takes flows.
func AddressesOf(w *world.World, e pando.Endpoints, s pando.Seat) (v4, v6 netip.Addr, ok bool) {
	if !s.Phase.TakesFlows() {
		return v4, v6, false
	}
	name := e.HostOf(s)
	slot := w.Members[name].V.Slot
	if h, here := w.Hosts[name]; here {
		slot = h.V.Slot
	}
	return s.Addresses(slot)
}

// facts returns the view of an instance's templates. It has the named services alone.
func (t Templates) facts(
	i pando.Instance, spec pando.Spec, secrets map[string][]byte, names []pando.ServiceName,
) config.Facts {
	f := config.Facts{
		Self: config.Self{
			Service: string(i.Service.Name), Tenant: string(i.Service.Tenant), Instance: string(i.ID),
			Host: string(t.of.Host), Ordinal: max(0, i.Ordinal-1), Ports: portsOf(spec.Ports),
			Environment: spec.Environment, Labels: spec.Labels,
		},
		Services: map[pando.ServiceName]config.Service{}, Secrets: secrets,
	}
	t.of.Records.Read(func(w *world.World) {
		for _, name := range names {
			k := pando.ServiceKey{Tenant: i.Service.Tenant, Name: name}
			if e, ok := w.Endpoints[k]; ok && !e.V.Service.Removing {
				f.Services[name] = serviceOf(w, e.V)
			}
		}
	})
	return f
}

func serviceOf(w *world.World, e pando.Endpoints) config.Service {
	out := config.Service{Name: string(e.Service.Name), Ports: portsOf(e.Ports)}
	if e.Service.VIP4.IsValid() {
		out.VIP = e.Service.VIP4.String()
	}
	if e.Service.VIP6.IsValid() {
		out.VIP6 = e.Service.VIP6.String()
	}
	port := 0
	if len(e.Ports) > 0 {
		port = int(e.Ports[0].Target)
	}
	for _, s := range e.Seats {
		v4, v6, ok := AddressesOf(w, e, s)
		if !ok || len(out.Endpoints) == ListedMax {
			continue
		}
		out.Endpoints = append(out.Endpoints, config.Endpoint{
			Name: string(s.Instance), Host: string(e.HostOf(s)), IP: v4.String(), IP6: v6.String(),
			Port: port, Weight: s.Weight, Revision: s.Revision,
		})
	}
	slices.SortFunc(out.Endpoints, func(a, b config.Endpoint) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return out
}

func portsOf(all []pando.Port) (out []config.Port) {
	for _, p := range all {
		out = append(out, config.Port{Published: int(p.Published), Target: int(p.Target),
			Protocol: string(p.Protocol)})
	}
	return out
}
