package pando

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// spreadMost is the load of an instance over the mean from which connections leave, and spreadTo
	// the load after that.
	spreadMost, spreadTo = 1.2, 1.1
	// spreadOver is the time over which connections leave, so that their clients do not connect all
	// at once.
	spreadOver = time.Second
)

// Spread lets connections go when the service grows. Clients that keep their connections stay on the
// instances to which they connected once, so a new instance would get no work. After a change of the
// number of instances, a share of the connections here ends with the next answer: by "Connection:
// close", which net/http sends as GOAWAY to a client by HTTP/2. The client connects again, and Pando
// chooses the instance. No request fails.
//
// Call it before the server serves. It keeps the hooks of the server. It ends with ctx.
func (s *Self) Spread(ctx context.Context, server *http.Server) {
	sp := newSpread(server)
	go func() {
		for e := range s.Events(ctx) {
			var at struct {
				InRotation int `json:"in_rotation"`
			}
			if e.Kind == Peers && json.Unmarshal(e.Data, &at) == nil {
				sp.saw(at.InRotation)
			}
		}
	}()
}

// spread is the kept connections of one server.
type spread struct {
	mu        sync.Mutex
	conns     map[net.Conn]*kept
	instances int     // that take flows; 0: not known yet
	load      float64 // the expected connections here, over the mean of the service
}

// kept is one connection.
type kept struct{ due atomic.Int64 } // when it is to leave, in nanoseconds; 0: it stays

type keptKey struct{}

func newSpread(server *http.Server) *spread {
	sp := &spread{conns: map[net.Conn]*kept{}}
	context0, state0, handler := server.ConnContext, server.ConnState, server.Handler
	if handler == nil {
		handler = http.DefaultServeMux
	}
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if context0 != nil {
			ctx = context0(ctx, c)
		}
		k := &kept{}
		sp.mu.Lock()
		defer sp.mu.Unlock()
		sp.conns[c] = k
		return context.WithValue(ctx, keptKey{}, k)
	}
	server.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			sp.mu.Lock()
			delete(sp.conns, c)
			sp.mu.Unlock()
		}
		if state0 != nil {
			state0(c, state)
		}
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k, ok := r.Context().Value(keptKey{}).(*kept); ok && k.leaves(r) {
			w.Header().Set("Connection", "close")
		}
		handler.ServeHTTP(w, r)
	})
	return sp
}

// leaves reports whether a connection ends with the answer to a request.
func (k *kept) leaves(r *http.Request) bool {
	due := k.due.Load()
	return due != 0 && time.Now().UnixNano() >= due &&
		!strings.EqualFold(r.Header.Get("Connection"), "upgrade")
}

// saw takes the number of instances that take flows.
func (sp *spread) saw(instances int) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if instances < 1 {
		return
	}
	sp.load = loadAfter(sp.load, sp.instances, instances)
	sp.instances = instances
	share := shareToLeave(sp.load)
	if share == 0 {
		return
	}
	sp.load = spreadTo
	sp.leave(share)
}

// leave chooses a share of the connections to leave, exactly: a draw for each would leave too many on
// some instances. Those that were chosen before are on their way. The caller holds the lock.
func (sp *spread) leave(share float64) {
	var stay []*kept
	for _, k := range sp.conns {
		if k.due.Load() == 0 {
			stay = append(stay, k)
		}
	}
	rand.Shuffle(len(stay), func(a, b int) { stay[a], stay[b] = stay[b], stay[a] })
	now := time.Now()
	for _, k := range stay[:int(math.Ceil(share*float64(len(stay))))] {
		k.due.Store(now.Add(time.Duration(rand.Int64N(int64(spreadOver)))).UnixNano())
	}
}

// loadAfter returns the load of an instance over the mean after a change of the number of instances.
// New instances lower the mean. The connections of those that left went to all others alike.
func loadAfter(load float64, before, now int) float64 {
	r := float64(now) / float64(max(before, 1))
	switch {
	case before == 0: // it begins: nothing is known, and a new instance has less than the others
		return 1
	case r > 1:
		return load * r
	}
	return (load-1)*r + 1
}

// shareToLeave returns the share of the connections that leave. They come back to all instances alike:
// of a load L, (1-s)L+s stays, which becomes spreadTo.
func shareToLeave(load float64) float64 {
	if load <= spreadMost {
		return 0
	}
	return (load - spreadTo) / (load - 1)
}
