package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"net/http"
	"sync"

	"pando.run/pando"
	"pando.run/pando/access"
)

// keyHeader names a request that changes something. A second one with the same key has no effect.
const keyHeader = "Idempotency-Key"

// keys remembers which request each newest key of each owner named. A key of another request is
// refused. The records of a service remember more (Asker.Digest); this table also knows requests
// without a service, and bodies with secrets. An owner is a tenant, a host, or the operators.
type keys struct {
	mu sync.Mutex
	of map[string]*ownKeys
}

// ownKeys are the keys of one owner, oldest first in order.
type ownKeys struct {
	digests map[string]string
	order   []string
}

// The bounds of the table. One owner never pushes out a key of another.
const (
	keysOfMax   = 512
	keyOwnerMax = 2048
)

func newKeys() *keys { return &keys{of: map[string]*ownKeys{}} }

// named is a request with a key, while its body is read.
type named struct {
	table       *keys
	owner, key  string
	what        string    // method, path and query
	all, public hash.Hash // of the request, with and without its body
}

type namedKey struct{}

// naming passes requests with a key on, so that each is bound to its content.
func (k *keys) naming(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get(keyHeader)
		if key == "" || r.Method == http.MethodGet || r.Method == http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		n := &named{table: k, owner: ownerOf(r.Context()), key: key, all: sha256.New(),
			public: sha256.New(), what: r.Method + " " + r.URL.Path}
		for _, h := range []hash.Hash{n.all, n.public} {
			fmt.Fprintf(h, "%q %q %q %q\n", n.what, r.URL.Query().Encode(), n.owner,
				r.Header.Get(operatorHeader))
		}
		r = r.WithContext(context.WithValue(r.Context(), namedKey{}, n))
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, n.all), r.Body}
		next.ServeHTTP(w, r)
	})
}

// ownerOf returns whose keys a request uses.
func ownerOf(ctx context.Context) string {
	if t, ok := access.TokenOf(ctx); ok {
		return "tenant " + string(t.Tenant)
	}
	if m, ok := callerOf(ctx); ok {
		return "host " + string(m.Name)
	}
	return ""
}

// namedOf returns the key of a request, or nil.
func namedOf(ctx context.Context) *named {
	n, _ := ctx.Value(namedKey{}).(*named)
	return n
}

// digestBytes of a hash are kept.
const digestBytes = 8

func digestOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:digestBytes]) }

// admit binds the key to the request, or refuses the key of another request. The caller has read the
// body.
func (n *named) admit() error {
	digest, t := digestOf(n.all), n.table
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.of[n.owner]
	if own == nil {
		if len(t.of) >= keyOwnerMax {
			return nil // the records of the services still know the key
		}
		own = &ownKeys{digests: map[string]string{}}
		t.of[n.owner] = own
	}
	switch was, known := own.digests[n.key]; {
	case known && was != digest:
		return fmt.Errorf("%s: %w %q; send it with a new one", n.what, pando.ErrKeyReused, n.key)
	case known:
		return nil
	}
	if len(own.order) >= keysOfMax {
		delete(own.digests, own.order[0])
		own.order = own.order[1:]
	}
	own.digests[n.key], own.order = digest, append(own.order, n.key)
	return nil
}

// ended frees the key of a request that was refused: it had no effect, and may come corrected.
func (n *named) ended(err error) {
	if n == nil || problemOf(err, nil).Status >= 500 {
		return
	}
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	own := n.table.of[n.owner]
	if own == nil || own.digests[n.key] != digestOf(n.all) {
		return
	}
	delete(own.digests, n.key)
	for at, key := range own.order {
		if key == n.key {
			own.order = append(own.order[:at:at], own.order[at+1:]...)
			break
		}
	}
}
