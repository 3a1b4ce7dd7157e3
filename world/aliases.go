package world

import (
	"slices"

	"pando.run/pando"
)

// alias is a further name in a tenant.
type alias struct {
	tenant pando.Tenant
	name   string
}

// aliases are the services of a further name. Of several, the first by name has it.
type aliases map[alias][]pando.ServiceName

// replace removes the further names that a service had, and adds those that it has.
func (a aliases) replace(s pando.ServiceKey, had, has []string) {
	for _, name := range had {
		k := alias{s.Tenant, name}
		a[k] = slices.DeleteFunc(a[k], func(n pando.ServiceName) bool { return n == s.Name })
		if len(a[k]) == 0 {
			delete(a, k)
		}
	}
	for _, name := range has {
		k := alias{s.Tenant, name}
		if at, there := slices.BinarySearch(a[k], s.Name); !there {
			a[k] = slices.Insert(a[k], at, s.Name)
		}
	}
}

// Aliased returns the service of a tenant that has a further name. Only a world of one host knows
// it, by the endpoints of the services.
func (w *World) Aliased(t pando.Tenant, name string) (pando.ServiceKey, bool) {
	of := w.aliases[alias{t, name}]
	if len(of) == 0 {
		return pando.ServiceKey{}, false
	}
	return pando.ServiceKey{Tenant: t, Name: of[0]}, true
}
