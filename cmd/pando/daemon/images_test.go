package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/turns"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sandbox/image"
)

// mute is a registry that counts its requests and answers none before the test ends.
type mute struct {
	at    string
	asked atomic.Int64
	came  chan struct{}
}

func newMute(t *testing.T) *mute {
	m := &mute{came: make(chan struct{}, 100)}
	end := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		m.asked.Add(1)
		m.came <- struct{}{}
		select {
		case <-end:
		case <-q.Context().Done():
		}
	}))
	t.Cleanup(func() { close(end); s.Close() })
	m.at = strings.TrimPrefix(s.URL, "http://") + "/x/y:1"
	return m
}

func imagesOf(t *testing.T, a admission) imageOperators {
	t.Helper()
	store, err := image.Open(image.Config{Dir: t.TempDir(), Host: "host1", Clock: clock.Clock{},
		Log: slog.New(slog.DiscardHandler), Packed: true})
	if err != nil {
		t.Fatal(err)
	}
	return imageOperators{Control: a.control, images: store,
		resolving: turns.New[pando.Tenant](resolveTurns)}
}

// A spec that is refused in any case, for its words or for a quota, makes no request to a registry.
func TestNoRegistryIsAskedForARefusedSpec(t *testing.T) {
	o, m := imagesOf(t, cluster1(t)), newMute(t)
	of := pando.Image{Reference: m.at, Inside: true}
	for what, s := range map[string]pando.Spec{
		"quota":  {Name: "web", Tenant: "acme", Image: of, Scale: pando.Scale{Min: 201, Max: 300}},
		"disk":   {Name: "web", Tenant: "acme", Image: of, Volumes: []pando.Volume{{Name: "d", Path: "/d", Bytes: 1 << 40}}},
		"words":  {Name: "Web", Tenant: "acme", Image: of},
		"volume": {Name: "web", Tenant: "acme", Image: of, Volumes: []pando.Volume{{Name: "/", Path: "/d"}}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() {
			_, err := o.Deploy(ctx, s.WithDefaults(), pando.Asker{Name: "acme"})
			answer <- err
		}()
		select {
		case err := <-answer:
			if !errors.Is(err, pando.ErrRefused) && !errors.Is(err, pando.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		case <-m.came:
			t.Errorf("%s: the registry is asked", what)
		}
		cancel()
	}
	if n := m.asked.Load(); n > 0 {
		t.Errorf("the registry got %d requests", n)
	}
}

// The deploys of one tenant from a registry that does not answer hold up neither another tenant nor an
// operator.
func TestASlowRegistryOfATenantHoldsUpNobody(t *testing.T) {
	o, m := imagesOf(t, cluster1(t)), newMute(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 100)
	resolve := func(ctx context.Context, by pando.Tenant) {
		_, _, err := o.resolve(ctx, by, pando.Image{Reference: m.at, Inside: true})
		ended <- err
	}
	as := func(t pando.Tenant) context.Context {
		return access.WithToken(ctx, access.Token{TokenKey: access.TokenKey{Tenant: t, Name: "ci"}})
	}
	begun := 0
	for range resolveTurns.Each + resolveTurns.Waiting {
		go resolve(as("acme"), "acme")
		begun++
	}
	for range resolveTurns.Each {
		<-m.came
	}
	// A place to wait may not be taken yet, so the refusal is waited for.
	for refused := false; !refused; begun++ {
		go resolve(as("acme"), "acme")
		if err := <-ended; errors.Is(err, pando.ErrRefused) {
			refused = true
		} else {
			t.Fatal(err)
		}
	}
	go resolve(as("bank"), "bank")
	<-m.came
	go resolve(ctx, pando.DefaultTenant)
	<-m.came
	if n := m.asked.Load(); n != int64(resolveTurns.Each)+2 {
		t.Errorf("the registry got %d requests at once", n)
	}
	cancel()
	for range begun - 1 + 2 {
		<-ended
	}
}
