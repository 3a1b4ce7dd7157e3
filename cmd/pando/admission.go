package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/control"
	"pando.run/pando/driver/peer"
	"pando.run/pando/driver/trust"
	"pando.run/pando/world"
)

// admission is the server's side of a join: which hosts become members, and what they get.
type admission struct {
	place
	*control.Control
	*trust.Authority
}

// join answers one host. What can be wrong with a request is found before a slot or a use of the token is given away.
func (a admission) join(ctx context.Context, j peer.Joining, known *x509.Certificate) (peer.Joined, error) {
	now := time.Now()
	m, err := a.asked(j, known)
	if err != nil {
		return peer.Joined{}, err
	}
	admit := func() error {
		m, err = a.Admit(ctx, m, known == nil)
		return err
	}
	if known != nil || a.isMember(ctx, m) {
		err = admit()
	} else {
		err = a.Use(j.Token, now, admit)
	}
	if err != nil {
		return peer.Joined{}, err
	}
	der, err := a.Sign(j.Request, j.Host, now)
	return peer.Joined{Slot: m.Slot, Store: "https://" + a.open(storePort), Certificate: der, Authority: a.Certificate().Raw}, err
}

// isMember says whether the host was admitted already with this key: the answer was lost, and it asks again.
func (a admission) isMember(ctx context.Context, m pando.Member) bool {
	known, err := readMember(ctx, a.Registry, m.Name)
	return err == nil && known.PublicKey == m.PublicKey
}

// asked is the member that a request is for, or what is wrong with it.
func (a admission) asked(j peer.Joining, known *x509.Certificate) (m pando.Member, err error) {
	if known != nil {
		if h, err := trust.HostOf(known); err != nil || h != j.Host {
			return m, fmt.Errorf("%w: the certificate is of %q, not of host %s", pando.ErrForbidden, known.Subject.CommonName, j.Host)
		}
	}
	if own := world.CurrentLayout(); j.Layout != own {
		return m, fmt.Errorf("%w: host %s runs pando %s, which keeps records in layout %d, and this cluster's is %d (pando %s): install the same pando on both, then try again; `pando restart` takes a newer one over",
			pando.ErrInvalid, j.Host, j.Version, j.Layout, own, version)
	}
	m = pando.Member{Name: j.Host}
	if m.PublicKey, err = trust.RequestedKey(j.Request); err != nil {
		return m, fmt.Errorf("host %s: %w", j.Host, err)
	}
	if known != nil && pando.PublicKeyHash(known.RawSubjectPublicKeyInfo) != m.PublicKey {
		return m, fmt.Errorf("%w: host %s asks for a certificate for another key than its own", pando.ErrForbidden, j.Host)
	}
	if m.Address, err = netip.ParseAddr(j.Address); err != nil || !m.Address.IsGlobalUnicast() {
		return m, fmt.Errorf("%w: host %s gives %q as its address; say it with --address", pando.ErrInvalid, j.Host, j.Address)
	}
	if m.Address != j.From {
		return m, fmt.Errorf("%w: host %s gives %s as its address and asks from %s; say the address by which it reaches the server with --address",
			pando.ErrInvalid, j.Host, m.Address, j.From)
	}
	if j.Address6 != "" {
		if m.Address6, err = netip.ParseAddr(j.Address6); err != nil || !m.Address6.Is6() || !m.Address6.IsGlobalUnicast() {
			return m, fmt.Errorf("%w: host %s gives %q as its IPv6 address", pando.ErrInvalid, j.Host, j.Address6)
		}
	}
	return m, nil
}

// welcome is what the server serves to other hosts.
func welcome(a admission, keeper *doorkeeper, face http.Handler) http.Handler {
	check := func(token string) error { return a.Check(token, time.Now()) }
	mux := http.NewServeMux()
	mux.Handle("POST "+peer.JoinPath, peer.JoinHandler(check, a.join))
	mux.Handle("/", keeper.whileMember(api.ForMembers(face, keeper.asker)))
	return forStrangers(mux)
}

// renewEvery is how often a host takes a new certificate: far more often than one ends.
const renewEvery = 24 * time.Hour

// renewingOwn renews the certificates that this host's own authority made, for as long as the daemon lives. then takes the new one
// over.
func renewingOwn(a *trust.Authority, log *slog.Logger, i *trust.Identity, then func() error) func(context.Context) error {
	return func(ctx context.Context) error {
		for pando.Sleep(ctx, pando.WallClock{}, renewEvery) == nil {
			err := a.Renew(i, time.Now())
			if err == nil && then != nil {
				err = then()
			}
			if err != nil {
				log.Warn("this host's certificate is not renewed", "ends", i.Ends(), "error", err)
			}
		}
		return ctx.Err()
	}
}
