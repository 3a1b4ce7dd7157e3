package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/network/ebpf"
	"pando.run/pando/driver/network/features"
	"pando.run/pando/world"
)

// The ports between the hosts of a cluster. All of them use TLS.
const (
	joinPort  = 7401 // of the server: hosts join here, members read the operators' API
	storePort = 7402 // of the server: the registry
	agentPort = 7403 // of every host: its agent
	peerPort  = 7404 // of one of several servers: the other servers
)

func (p place) open(port int) string { return net.JoinHostPort(p.Listen, strconv.Itoa(port)) }
func (p place) endpoint() string     { return "https://" + p.open(agentPort) }

// joinFlags adds the flags that make a host a member.
func (p *place) joinFlags(c *cobra.Command) {
	c.Flags().StringVar(&p.Join, "join", "", "join the cluster whose server has this address")
	c.Flags().StringVar(&p.Token, "token", "", "token that `pando token` printed on the server's host")
}

// ownCluster returns the error of a host that would join while it has a cluster of its own.
func (p place) ownCluster() error {
	return fmt.Errorf("%w: this host has a cluster of its own in %s; `pando down --purge` deletes it",
		pando.ErrExists, p.Data)
}

// join makes this host a member as the flags ask, and returns its membership. It returns nil for a
// host with a cluster of its own.
func join(ctx context.Context, p place) (*trust.Membership, error) {
	m, err := trust.LoadMembership(p.trust())
	if err != nil || p.Join == "" {
		return m, err
	}
	server := p.Join
	if _, _, err := net.SplitHostPort(server); err != nil {
		server = net.JoinHostPort(server, strconv.Itoa(joinPort))
	}
	if m != nil && p.Token == "" {
		if m.Server != server {
			return nil, fmt.Errorf("%w: this host is a member of the cluster of %s; "+
				"`pando down --purge` leaves it",
				pando.ErrExists, m.Server)
		}
		return m, nil
	}
	if own, err := p.hasStore(); err != nil || own && m == nil {
		return nil, errors.Join(err, p.ownCluster())
	}
	if p.Token == "" {
		return nil, cli.Usagef("--join needs a --token: `pando token` on %s prints one", server)
	}
	identity, err := trust.ByToken(p.Token)
	if err != nil {
		return nil, err
	}
	if err := tunnelFits(ctx, p, server); err != nil {
		return nil, err
	}
	next := &trust.Membership{Host: pando.HostName(p.Host), Server: server}
	if next.Identity, err = trust.NewKey(); err != nil {
		return nil, err
	}
	if m != nil {
		next.Identity = m.Identity // a key of another cluster is refused when the certificate arrives
	}
	asked, err := p.joining(next.Identity)
	if err != nil {
		return nil, err
	}
	asked.Token = p.Token
	got, err := peer.Join(ctx, server, identity, asked)
	if err != nil {
		return nil, err
	}
	return next, accept(p, next, got)
}

// joinFresh makes this host a member as join does, and refuses one whose certificate has ended.
func joinFresh(ctx context.Context, p place) (*trust.Membership, error) {
	m, err := join(ctx, p)
	if err == nil {
		err = expired(p, m, clock.Clock{}.Now())
	}
	return m, err
}

// expired returns an error for a member whose certificate has ended: no server admits its agent. A
// server signs its own.
func expired(p place, m *trust.Membership, now time.Time) error {
	if m == nil || m.Identity.Ends().After(now) {
		return nil
	}
	if serves, err := p.isServer(); err != nil || serves {
		return err
	}
	const clock = "2006-01-02 15:04:05"
	return fmt.Errorf("%w: the certificate of this host ended on %s (UTC), and its clock shows %s: set "+
		"the clock if it is wrong; else print a token by `pando token` on %s, then `pando up --join %[4]s "+
		"--token TOKEN`", pando.ErrForbidden, m.Identity.Ends().UTC().Format(clock),
		now.UTC().Format(clock), m.Server)
}

// tunnelFits refuses a join over a network with packets too small for the tunnel between hosts. It
// checks the way to the server alone; the agents check the other ways.
func tunnelFits(ctx context.Context, p place, server string) error {
	at, err := net.ResolveUDPAddr("udp", server)
	if err != nil || p.Steer != steerEBPF {
		return nil // the join itself reports a name without an address
	}
	to := at.AddrPort()
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if err := features.Fits(ctx, to, ebpf.TunnelBytes(to.Addr())); errors.Is(err, pando.ErrInvalid) {
		return fmt.Errorf("join the cluster of %s: %w", server, err)
	}
	return nil
}

func (p place) joining(i *trust.Identity) (peer.Joining, error) {
	request, err := i.Request()
	return peer.Joining{
		Host: pando.HostName(p.Host), Address: p.Address, Address6: p.address6,
		Layout: world.CurrentLayout(), Version: cli.Version, Request: request,
		Now: clock.Clock{}.Now(),
	}, err
}

func accept(p place, m *trust.Membership, got peer.Joined) error {
	if err := m.Identity.Accept(got.Certificate, got.Authority); err != nil {
		return fmt.Errorf("join the cluster of %s: %w", m.Server, err)
	}
	m.Slot, m.Store, m.Probes = got.Slot, got.Store, got.Probes
	return m.Save(p.trust())
}

// renew presents the certificate of a member and its record layout to the server, and stores the
// new certificate. The agent starts if the server does not answer, and does not start if the server
// refuses.
func renew(ctx context.Context, p place, m *trust.Membership, servers *known) error {
	asked, err := p.joining(m.Identity)
	if err != nil {
		return err
	}
	for _, at := range servers.doors(m.Server) {
		var got peer.Joined
		if got, err = peer.Join(ctx, at, m.Identity.ToServer(), asked); err == nil {
			return accept(p, m, got)
		}
		if !errors.Is(err, pando.ErrUnavailable) {
			break
		}
	}
	return err
}

// resign ends this host's membership on the server, for `pando down --purge`. The name and the slot
// of the host become free.
func resign(ctx context.Context, m *trust.Membership) error {
	ctx, cancel := context.WithTimeout(ctx, serverWaitMax)
	defer cancel()
	t := &http.Transport{TLSClientConfig: m.Identity.ToServer(), DisableKeepAlives: true}
	url := "https://" + m.Server + "/v1/hosts/" + string(m.Host) + "?force=true"
	r, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, nil)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest && resp.StatusCode != http.StatusNotFound {
		return fmt.Errorf("the server answered %s", resp.Status)
	}
	return nil
}
