package supply

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"pando.run/pando"
)

func TestPullsOfOneTenantLeaveTurnsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, ctx := newPulls(), t.Context()
		active := map[pando.Tenant]int{}
		var mu sync.Mutex
		var waits []string
		bring := func(of pando.Tenant, n int) {
			i := pando.Image{Reference: fmt.Sprint(of, n)}
			_ = p.bring(ctx, of, i, func(what string) {
				mu.Lock()
				defer mu.Unlock()
				waits = append(waits, what)
			}, func(ctx context.Context) error {
				mu.Lock()
				active[of]++
				mu.Unlock()
				<-ctx.Done()
				return nil
			})
		}
		for n := range 20 {
			go bring("acme", n)
		}
		synctest.Wait()
		go bring("beta", 0)
		synctest.Wait()
		for _, of := range []pando.Tenant{"coop", "bank"} { // all turns without the reserve are taken
			go bring(of, 0)
			go bring(of, 1)
		}
		synctest.Wait()
		go bring(pando.DefaultTenant, 0)
		synctest.Wait()
		if active["acme"] != pullTurns.Each || active["beta"] != 1 || active[pando.DefaultTenant] != 1 {
			t.Errorf("pulls at once: %v", active)
		}
		if len(waits) == 0 || !strings.Contains(waits[0], "a turn") {
			t.Errorf("the waits are %q", waits)
		}
	})
}

// A pull ends with the last of its owners, and leaves nothing behind.
func TestAPullEndsWithItsLastOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, ended := newPulls(), 0
		var stops []func()
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			stops = append(stops, cancel)
			go func() {
				_ = p.bring(ctx, "acme", pando.Image{Reference: "shop/web"}, func(string) {},
					func(ctx context.Context) error {
						<-ctx.Done()
						ended++
						return ctx.Err()
					})
			}()
		}
		synctest.Wait()
		for n, stop := range stops {
			stop()
			synctest.Wait()
			if ended != n || len(p.running) != 1-n {
				t.Errorf("after %d owners %d pulls have ended, and %d run", n+1, ended, len(p.running))
			}
		}
	})
}
