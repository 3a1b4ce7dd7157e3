package daemon

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/api"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
)

// The bounds of the calls with tokens of tenants.
const (
	callsPerSecond = 50 // of one token
	callsBurst     = 200
	failsPerMinute = 10 // wrong tokens from one address
	failsBurst     = 20
	failBuckets    = 4096 // addresses share these by a hash
	callersMax     = 4096 // tokens with a count of calls; then all counts begin again

	// The lines about refused calls in the log: of one tenant or address, and of all callers without a
	// right token together. So no flood hides the calls of another tenant, or fills the log of a day.
	linesPerMinute    = 6
	linesBurst        = 20
	strangerPerSecond = 1
	strangerBurst     = 100
)

// gatekeeper admits callers with a token of a tenant, and bounds their calls.
type gatekeeper struct {
	token func(access.TokenKey, []byte) (access.Token, error) // with this secret
	log   *slog.Logger
	seed  maphash.Seed

	mu        sync.Mutex
	fails     [failBuckets]*rate.Limiter
	calls     map[access.TokenKey]*rate.Limiter
	lines     map[pando.Tenant]*rate.Limiter // of the log; at most access.TenantsMax
	addresses [failBuckets]*rate.Limiter     // the lines of callers without a right token
	strangers *rate.Limiter                  // those of all of them
}

func newGatekeeper(
	token func(access.TokenKey, []byte) (access.Token, error), log *slog.Logger,
) *gatekeeper {
	return &gatekeeper{token: token, log: log, seed: maphash.MakeSeed(),
		calls: map[access.TokenKey]*rate.Limiter{}, lines: map[pando.Tenant]*rate.Limiter{},
		strangers: rate.NewLimiter(strangerPerSecond, strangerBurst)}
}

const bearer = "Bearer "

// tokenText returns the text of the token in a request, or "". Clients of Octavia have a header of
// their own for it.
func tokenText(r *http.Request) string {
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), bearer)
	if !ok && api.OfOctavia(r) {
		return r.Header.Get("X-Auth-Token")
	}
	return text
}

// carries reports whether a request shows a token of a tenant.
func carries(r *http.Request) bool { return trust.IsTenantToken(tokenText(r)) }

// shown returns the name and the secret of the token of a request.
func shown(r *http.Request) (access.TokenKey, []byte, error) {
	return trust.ReadTenantToken(tokenText(r))
}

// bucketOf returns the bucket of the address of a request.
func (g *gatekeeper) bucketOf(r *http.Request) uint64 {
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	a := from.Addr().Unmap()
	if a.Is6() {
		p, _ := a.Prefix(64) // one machine has so many
		a = p.Addr()
	}
	return maphash.Comparable(g.seed, a) % failBuckets
}

// failsOf returns the limit of wrong tokens from the address of a request.
func (g *gatekeeper) failsOf(r *http.Request) *rate.Limiter {
	n := g.bucketOf(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fails[n] == nil {
		g.fails[n] = rate.NewLimiter(rate.Limit(failsPerMinute)/60, failsBurst)
	}
	return g.fails[n]
}

// mayLog reports whether a refused call gets a line in the log. Calls whose secret is
// wrong count as those of strangers.
func (g *gatekeeper) mayLog(r *http.Request, k access.TokenKey, known bool) bool {
	n := g.bucketOf(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	own := g.addresses[n]
	if known {
		own = g.lines[k.Tenant]
	}
	if own == nil {
		own = rate.NewLimiter(rate.Limit(linesPerMinute)/60, linesBurst)
	}
	if !known {
		g.addresses[n] = own
		return own.Allow() && g.strangers.Allow()
	}
	if len(g.lines) >= access.TenantsMax { // some are removed
		clear(g.lines)
	}
	g.lines[k.Tenant] = own
	return own.Allow()
}

// callsOf returns the limit of the calls with a token.
func (g *gatekeeper) callsOf(k access.TokenKey) *rate.Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.calls) >= callersMax {
		clear(g.calls)
	}
	if g.calls[k] == nil {
		g.calls[k] = rate.NewLimiter(callsPerSecond, callsBurst)
	}
	return g.calls[k]
}

// asker returns the token of a request, or why it has none.
func (g *gatekeeper) asker(r *http.Request) (access.Token, error) {
	k, secret, err := shown(r)
	t := access.Token{TokenKey: k}
	if err == nil {
		t, err = g.token(k, secret)
	}
	if err != nil {
		// A right token is never refused: its address may be that of a NAT, or of a bucket that others
		// share.
		if !g.failsOf(r).Allow() {
			return access.Token{}, fmt.Errorf("%w: too many wrong tokens from your address; try again in a "+
				"minute", pando.ErrBusy)
		}
		return access.Token{TokenKey: k}, err
	}
	if err := counted(r, k.Tenant); err != nil {
		return t, err
	}
	if !g.callsOf(k).Allow() {
		return t, fmt.Errorf("%w: more than %d calls a second with the token %s; try again in a second",
			pando.ErrBusy, callsPerSecond, k)
	}
	return t, nil
}

// refused logs a refused call with its caller, and leaves out most lines of a flood.
func (g *gatekeeper) refused(r *http.Request, err error) {
	k, secret, bad := shown(r)
	if bad == nil {
		_, bad = g.token(k, secret)
	}
	if !g.mayLog(r, k, bad == nil) {
		return
	}
	g.log.Warn("refused a call with a token of a tenant", "token", k, "from", r.RemoteAddr,
		"method", r.Method, "path", r.URL.Path, "error", err)
}

// admit serves the operators' API to callers with tokens. A request ends with its token.
func (g *gatekeeper) admit(face http.Handler) http.Handler {
	next := api.ForTenants(face, g.asker, g.refused)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, secret, err := shown(r)
		if err == nil {
			_, err = g.token(k, secret)
		}
		if err == nil { // no stranger any more: a stream of a log has no end
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
			ctx, cancel := context.WithCancelCause(r.Context())
			defer cancel(nil)
			go g.whileValid(ctx, cancel, k, secret)
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r)
	})
}

// validLook is how soon a request ends after its token.
const validLook = time.Second

// whileValid ends a request when its token ends.
func (g *gatekeeper) whileValid(
	ctx context.Context, cancel context.CancelCauseFunc, k access.TokenKey, secret []byte,
) {
	for pando.Sleep(ctx, clock.Clock{}, validLook) == nil {
		if _, err := g.token(k, secret); err != nil {
			cancel(err)
			return
		}
	}
}

// IssueToken implements access.Issuer.
func (o imageOperators) IssueToken(
	ctx context.Context, k access.TokenKey, c access.TokenChange, by pando.Asker,
) (is access.IssuedToken, err error) {
	if o.at.Listen == "" {
		return is, fmt.Errorf("%w: the server does not listen for callers from outside; "+
			"`pando down`, then `pando up --listen ADDRESS`", pando.ErrRefused)
	}
	text, secret, err := o.authority.TenantToken(k)
	if err != nil {
		return is, err
	}
	t := access.Token{TokenKey: k, Hash: access.TokenHash(secret), May: c.May,
		Until: clock.Clock{}.Now().Add(pando.Seconds(c.ForSeconds)).Truncate(time.Second)}
	if err := o.SetToken(ctx, t, c.Replace, by); err != nil {
		return is, err
	}
	return access.IssuedToken{TokenKey: k, Token: text, API: "https://" + o.at.open(joinPort),
		May: t.May, Until: t.Until}, nil
}
