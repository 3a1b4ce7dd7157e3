package world

import (
	"strings"

	"pando.run/pando"
)

// NewScoped returns an empty world of one host. It follows the endpoints of services instead of
// their own records, so it takes a service's record from its endpoints.
func NewScoped() *World {
	w := New()
	w.scoped = true
	return w
}

func (w *World) putEndpoints(e pando.Endpoints, at pando.StoreRevision) {
	s := e.Service.ServiceKey
	w.aliases.replace(s, w.Endpoints[s].V.Aliases, e.Aliases)
	w.Endpoints[s] = Versioned[pando.Endpoints]{e, at}
	if w.scoped {
		w.readable(s.Key(), at) // the endpoints are enough for this host
		w.settle(w.Services[s].V, e.Service)
		w.Services[s] = Versioned[pando.Service]{e.Service, at}
	}
}

func (w *World) dropEndpoints(s pando.ServiceKey, at pando.StoreRevision) {
	w.aliases.replace(s, w.Endpoints[s].V.Aliases, nil)
	delete(w.Endpoints, s)
	if !w.scoped {
		return
	}
	w.settle(w.Services[s].V, pando.Service{})
	delete(w.Services, s)
	delete(w.byKey, s.Key())
	// A service of the same name begins again at revision 1.
	for _, r := range w.Revisions[s] {
		w.forget(r.V.Key(), at)
	}
}

// Leave drops the records under a prefix that this host follows no longer.
func (w *World) Leave(prefix pando.Key) {
	for _, k := range w.Keys(prefix) {
		w.forget(k, max(w.byKey[k].modified, w.unread[k].Modified))
		delete(w.gone, k)
	}
}

// Keys returns the keys of the records under a prefix, in no order.
func (w *World) Keys(prefix pando.Key) (out []pando.Key) {
	for k := range w.byKey {
		if strings.HasPrefix(string(k), string(prefix)) {
			out = append(out, k)
		}
	}
	for k := range w.unread {
		if _, known := w.byKey[k]; !known && strings.HasPrefix(string(k), string(prefix)) {
			out = append(out, k)
		}
	}
	return out
}
