package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/world"
)

// leading returns the host of the leading control, or "".
func leading(ctx context.Context, r pando.Registry) (h pando.HostName) {
	at, err := r.Snapshot(ctx, pando.LeaderKey("control"))
	if err != nil {
		return ""
	}
	for _, one := range at.Records {
		if one.Key == pando.LeaderKey("control") && world.Decode(one, &h) != nil {
			return ""
		}
	}
	return h
}

// afterEnd returns the consequence of the end of one server for the quorum, in words. It returns
// ErrRefused if the others would decide nothing.
func afterEnd(all []server, own string) (string, error) {
	voters, alive := 0, 0
	var silent []string
	for _, s := range all {
		switch {
		case s.Learner:
			continue
		case s.Name == own:
		case s.Answers:
			alive++
		default:
			silent = append(silent, s.Name)
		}
		voters++
	}
	if len(all) > 0 && all[0].Foreign {
		return afterEndForeign(alive)
	}
	own1 := slices.ContainsFunc(all, func(s server) bool { return s.Name == own && !s.Learner })
	need := voters/2 + 1
	switch {
	case !own1:
		return "", nil // it has no vote
	case alive < need:
		next := fmt.Sprintf("take it out first with `pando servers rm %s`", own)
		if len(silent) > 0 {
			next = "start " + strings.Join(silent, " and ") + " first with `pando up` there"
		}
		return "", fmt.Errorf("%w: %d of %d servers would stay, and decisions need %d: services and "+
			"connections would continue, and nothing would be decided; %s, or give --force",
			pando.ErrRefused, alive, voters, need, next)
	}
	more := "no other server may end until it is back"
	if spare := alive - need; spare > 0 {
		more = cli.Count(spare, "more server") + " may end"
	}
	return fmt.Sprintf("%d of %d servers stay and decide; %s", alive, voters, more), nil
}

// afterEndForeign is afterEnd for servers on a foreign etcd: one of them decides.
func afterEndForeign(others int) (string, error) {
	if others == 0 {
		return "", fmt.Errorf("%w: no other server answers: services and connections would continue, "+
			"and nothing would be decided; start another with `pando up` first, or give --force",
			pando.ErrRefused)
	}
	return cli.Count(others, "other server") + " can decide", nil
}

// mayEnd prints how many servers stay after the end of this host's server. It refuses an end that
// would stop all decisions, and the loss of the files of a server that the others count.
func (m machine) mayEnd(ctx context.Context, p place, purge bool) error {
	if s, err := p.readSeveral(); err != nil || s == nil && !p.Store.there() {
		return err
	}
	if _, serves := daemon(p, "server"); !serves {
		return nil // it counts as lost already
	}
	all, err := m.lookServers(ctx, &p)
	if errors.Is(err, pando.ErrUnavailable) {
		fmt.Fprintln(m.Stderr, "the servers have no quorum, and nothing is decided already")
		return nil
	}
	if err != nil || len(all) < 2 {
		return err
	}
	if purge {
		return fmt.Errorf("%w: the other servers count on this one; `pando servers rm %s` on one of "+
			"them first, or give --force", pando.ErrRefused, p.Host)
	}
	text, err := afterEnd(all, p.Host)
	if err == nil && text != "" {
		fmt.Fprintln(m.Stderr, text)
	}
	return err
}

// becomeMember writes a membership for the first server's host, which has none, when its server was
// taken out. It then reaches the other servers like every member. It does nothing on other hosts.
func becomeMember(p place) error {
	if m, err := trust.LoadMembership(p.trust()); err != nil || m != nil {
		return err
	}
	others := openKnown(p, nil, true, slog.New(slog.DiscardHandler)).others()
	if len(others) == 0 {
		return fmt.Errorf("%w: no other server is known in %s; keep %s, and join the cluster again",
			pando.ErrUnavailable, p.knownFile(), p.trust())
	}
	now := clock.Clock{}.Now()
	a, err := trust.OpenAuthority(p.trust(), now)
	if err != nil {
		return err
	}
	m := &trust.Membership{Host: pando.HostName(p.Host), Slot: p.Slot,
		Server: net.JoinHostPort(others[0].String(), strconv.Itoa(joinPort)),
		Store:  storeAt(others[0])}
	if m.Identity, err = a.Identity(m.Host, now); err != nil {
		return err
	}
	if m.Probes, err = a.ProbeKey(); err != nil {
		return err
	}
	return m.Save(p.trust())
}

// others returns the addresses of the servers of other hosts.
func (k *known) others() []netip.Addr {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.addresses()
}

// demotion returns a job that starts the agent anew, in the same process, once this host's server
// was taken out: the agent then reaches the other servers, and answers the operators here.
func (c cluster) demotion(p place) job {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.servers.demoted:
		}
		for {
			serves, err := p.isServer()
			if err == nil && !serves {
				return errAgain
			}
			if pando.Sleep(ctx, clock.Clock{}, answerTime) != nil {
				return ctx.Err()
			}
		}
	}
}
