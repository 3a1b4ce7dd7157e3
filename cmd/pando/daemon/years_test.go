package daemon

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
)

// shake lets a client and a server shake hands over a pipe, in virtual time. It returns the error
// of either side.
func shake(client, server *tls.Config) error {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	ends := make(chan error, 2)
	for _, c := range []*tls.Conn{tls.Client(a, client), tls.Server(b, server)} {
		go func() {
			err := c.Handshake()
			if err != nil {
				c.NetConn().Close()
			}
			ends <- err
		}()
	}
	if err := <-ends; err != nil {
		return err
	}
	return <-ends
}

// cluster2 has every kind of certificate that a cluster of two hosts uses, each with the job that
// renews it. Its listeners' configurations are made once, as those of running daemons.
type cluster2 struct {
	server, beside, member          *trust.Identity
	join, store, atBeside, atMember *tls.Config
}

func newCluster2(t *testing.T, ctx context.Context) cluster2 {
	t.Helper()
	dir, log := t.TempDir(), slog.New(slog.NewTextHandler(io.Discard, nil))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var c cluster2
	open := func() *trust.Authority {
		a, err := trust.OpenAuthority(dir, time.Now())
		must(err)
		return a
	}
	ofServer, ofAgent := open(), open() // two processes
	var err error
	c.server, err = ofServer.Identity("", time.Now())
	must(err)
	c.beside, err = ofAgent.Identity("h1", time.Now())
	must(err)
	c.member, err = trust.NewKey()
	must(err)
	renewMember := func(context.Context) error {
		request, err := c.member.Request()
		if err != nil {
			return err
		}
		der, err := ofServer.Sign(request, "h2", time.Now())
		if err != nil {
			return err
		}
		return c.member.Accept(der, ofServer.Certificate().Raw)
	}
	must(renewMember(ctx))
	c.join, c.store = c.server.Anybody(), c.server.Members("h2")
	c.atBeside, c.atMember = c.beside.Members(), c.member.Members()
	jobs := []job{
		renewing(clock.Clock{}, log, c.server, func(context.Context) error {
			return ofServer.Renew(c.server, time.Now())
		}),
		renewing(clock.Clock{}, log, c.beside, func(context.Context) error {
			return ofAgent.Renew(c.beside, time.Now())
		}),
		renewing(clock.Clock{}, log, c.member, func(ctx context.Context) error {
			if err := shake(c.member.ToServer(), c.join); err != nil {
				return err // as a join does: the old certificate asks for the new one
			}
			return renewMember(ctx)
		}),
	}
	for _, job := range jobs {
		go func() { _ = job(ctx) }()
	}
	return c
}

func (c cluster2) meet(t *testing.T) {
	t.Helper()
	for what, pair := range map[string][2]*tls.Config{
		"the member at the join door":   {c.member.ToServer(), c.join},
		"the member at the store":       {c.member.ToServer(), c.store},
		"the member at the first host":  {c.member.ToHost("h1"), c.atBeside},
		"the first host at the member":  {c.beside.ToHost("h2"), c.atMember},
		"the server at the member":      {c.server.ToHost("h2"), c.atMember},
		"the first host at the server":  {c.beside.ToServer(), c.store},
		"the member at another's name":  {c.member.ToHost("h3"), c.atBeside},
		"a host that is not the server": {c.member.ToServer(), c.atBeside},
	} {
		err := shake(pair[0], pair[1])
		wrong := what == "the member at another's name" || what == "a host that is not the server"
		if (err != nil) != wrong {
			t.Errorf("%s, %s: %v", time.Now().Format(time.DateOnly), what, err)
		}
	}
}

// Certificates live for a year and the authority for 20. Every listener and client below is as old
// as its process.
func TestProcessesOutliveEveryCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		c := newCluster2(t, ctx)
		first := c.server.Ends()
		for range 24 { // years
			time.Sleep(trust.CertificateLife)
			c.meet(t)
		}
		if years := c.server.Ends().Sub(first).Hours() / 24 / 365; years < 23 {
			t.Errorf("the server's certificate was renewed over %.1f years", years)
		}
		end()
		synctest.Wait()
	})
}

// A machine may start with its clock years behind or ahead, until it hears the time.
func TestAClockThatJumpsYearsIsFollowed(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	for what, jump := range map[string]time.Duration{
		"ahead": 40 * 365 * 24 * time.Hour, "back": -5 * 365 * 24 * time.Hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			wrong := time.Now().Add(-jump)
			a, err := trust.OpenAuthority(t.TempDir(), wrong)
			if err != nil {
				t.Fatal(err)
			}
			i, err := a.Identity("", wrong)
			if err != nil {
				t.Fatal(err)
			}
			if err := shake(i.ToServer(), i.Members()); err == nil {
				t.Fatalf("%s: a certificate of %s is good in %s", what, wrong, time.Now())
			}
			ctx, end := context.WithCancel(t.Context())
			go func() {
				_ = renewing(clock.Clock{}, log, i, func(context.Context) error {
					return a.Renew(i, time.Now())
				})(ctx)
			}()
			time.Sleep(2 * renewLook)
			if err := shake(i.ToServer(), i.Members()); err != nil {
				t.Errorf("%s: after the jump: %v", what, err)
			}
			end()
			synctest.Wait()
		})
	}
}
