package daemon

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/control"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/world"
)

// admission is the server's side of a join. It admits hosts as members and gives each a slot and a
// certificate.
type admission struct {
	place
	control   *control.Control
	authority *trust.Authority
}

// join answers the request of one host. It checks the request before it spends a slot or a use of
// the token.
func (a admission) join(
	ctx context.Context, j peer.Joining, known *x509.Certificate,
) (peer.Joined, error) {
	now := clock.Clock{}.Now()
	m, err := a.asked(j, known)
	if err != nil {
		return peer.Joined{}, err
	}
	var use *access.TokenUse
	if known == nil && !a.isMember(ctx, m) {
		one, err := a.authority.Use(j.Token, now)
		if err != nil {
			return peer.Joined{}, err
		}
		use = &one
	}
	if m, err = a.control.Admit(ctx, m, known == nil, use); err != nil {
		return peer.Joined{}, err
	}
	probes, err := a.authority.ProbeKey()
	if err != nil {
		return peer.Joined{}, err
	}
	der, err := a.authority.Sign(j.Request, j.Host, now)
	return peer.Joined{
		Slot: m.Slot, Store: "https://" + a.open(storePort),
		Certificate: der, Authority: a.authority.Certificate().Raw, Probes: probes,
	}, err
}

// isMember reports whether the host was admitted earlier with the same key. The host asks again
// when it did not receive the first answer.
func (a admission) isMember(ctx context.Context, m pando.Member) bool {
	known, err := readMember(ctx, a.control.Registry, m.Name)
	return err == nil && known.PublicKey == m.PublicKey
}

// asked returns the member that a request asks for, or an error that explains the refusal.
func (a admission) asked(j peer.Joining, known *x509.Certificate) (m pando.Member, err error) {
	if known != nil {
		if h, err := trust.HostOf(known); err != nil || h != j.Host {
			return m, fmt.Errorf("%w: the certificate belongs to %q, not to host %s",
				pando.ErrForbidden, known.Subject.CommonName, j.Host)
		}
	}
	if own := world.WrittenLayout(); j.Layout < own {
		return m, fmt.Errorf("%w: host %s runs pando %s, which reads records up to layout %d, "+
			"and this cluster writes layout %d (pando %s); "+
			"install a newer pando there, run `pando daemons restart`, then try again",
			pando.ErrInvalid, j.Host, j.Version, j.Layout, own, cli.Version)
	}
	// A member keeps its place when its clock drifts. A new host gets the cause before it has a slot.
	if off := j.Now.Sub(clock.Clock{}.Now()).Round(time.Second); known == nil && !j.Now.IsZero() &&
		off.Abs() > clockSkewMax {
		return m, fmt.Errorf("%w: the clock of host %s differs from this server's by %s, and leases, "+
			"tokens and certificates need the same time; set it there (`timedatectl set-ntp true`), then "+
			"try again", pando.ErrInvalid, j.Host, off)
	}
	m = pando.Member{Name: j.Host}
	if m.PublicKey, err = trust.RequestedKey(j.Request); err != nil {
		return m, fmt.Errorf("host %s: %w", j.Host, err)
	}
	if known != nil && pando.PublicKeyHash(known.RawSubjectPublicKeyInfo) != m.PublicKey {
		return m, fmt.Errorf("%w: host %s asks for a certificate for a key that is not its own",
			pando.ErrForbidden, j.Host)
	}
	if m.Address, err = netip.ParseAddr(j.Address); err != nil || !m.Address.IsGlobalUnicast() ||
		m.Address.Zone() != "" {
		return m, fmt.Errorf("%w: host %s gives %q as its address; set it there with --address",
			pando.ErrInvalid, j.Host, j.Address)
	}
	if m.Address != j.From {
		return m, fmt.Errorf("%w: host %s gives %s as its address but connects from %s; "+
			"set --address there to %[4]s",
			pando.ErrInvalid, j.Host, m.Address, j.From)
	}
	if j.Address6 != "" {
		m.Address6, err = netip.ParseAddr(j.Address6)
		if err != nil || !m.Address6.Is6() || !m.Address6.IsGlobalUnicast() || m.Address6.Zone() != "" {
			return m, fmt.Errorf("%w: host %s gives %q as its IPv6 address, which is not a global one",
				pando.ErrInvalid, j.Host, j.Address6)
		}
	}
	return m, nil
}

// welcome returns the handler that the server offers to other hosts.
func welcome(a promotion, keeper *doorkeeper, face http.Handler) http.Handler {
	check := func(token string) error { return a.admission.authority.Check(token, clock.Clock{}.Now()) }
	mux := http.NewServeMux()
	mux.Handle("POST "+peer.JoinPath, peer.JoinHandler(check, a.admission.join))
	mux.Handle("POST "+peer.ServerPath, peer.ServerHandler(a.hand))
	mux.Handle("GET "+peer.SecretsPath, secretsForMembers(a.admission.control.GiveSecrets, keeper))
	mux.Handle("GET "+peer.SnapshotKeyPath,
		secretsForMembers(a.admission.control.GiveSnapshotKeys, keeper))
	mux.Handle("GET "+peer.ImageRightPath,
		keeper.guard(peer.ImageRightHandler(a.admission.control.MayHaveImage)))
	members := keeper.whileMember(api.ForMembers(face, keeper.asker))
	tenants := newGatekeeper(a.admission.control.Token, a.admission.control.Log).admit(face)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if peer.Shown(r) == nil && carries(r) {
			tenants.ServeHTTP(w, r)
			return
		}
		members.ServeHTTP(w, r)
	})
	return forStrangers(mux, strangerWaitMax)
}

// A certificate is renewed once a week, although it is valid for a year. The job looks at the clock
// more often: the clock may jump, and a renewal may fail.
const (
	renewEvery = 7 * 24 * time.Hour
	renewLook  = time.Hour
)

// renewing returns a job that renews the certificate of a host in place, until ctx ends. Listeners
// and clients use the newest certificate at their next handshake.
func renewing(
	clock pando.Clock, log *slog.Logger, i *trust.Identity, renew func(context.Context) error,
) job {
	return func(ctx context.Context) error {
		for pando.Sleep(ctx, clock, renewLook) == nil {
			if !i.Stale(clock.Now(), renewEvery) {
				continue
			}
			if err := renew(ctx); err != nil {
				log.Warn("cannot renew the certificate of this host", "ends", i.Ends(), "error", err)
			}
		}
		return ctx.Err()
	}
}
