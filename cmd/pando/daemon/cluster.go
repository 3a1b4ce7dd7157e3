package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd"
)

// cluster holds the parts of the host's cluster that the agent needs.
type cluster struct {
	registry *etcd.Registry
	identity *trust.Identity
	probes   []byte // the key of the probes between hosts; nil: an earlier build's server
	slot     int
	server   string // address:port, if the server is on another host
	servers  *known
	jobs     []job
}

// moveTries is how often a host asks again whose former lease holds its old address.
const moveTries = int(pando.HostLease/time.Second) + 4

// enter finds the cluster of this host. That is its own cluster, with the server on this host, or
// the cluster that the host joined.
func enter(ctx context.Context, p place, log *slog.Logger) (c cluster, err error) {
	if err := haveLeft(p); err != nil {
		return c, err
	}
	m, err := join(ctx, p)
	if err != nil {
		return c, err
	}
	if m == nil {
		a, err := trust.OpenAuthority(p.trust(), clock.Clock{}.Now())
		if err != nil {
			return c, err
		}
		if c.identity, err = a.Identity(pando.HostName(p.Host), clock.Clock{}.Now()); err != nil {
			return c, err
		}
		if c.probes, err = a.ProbeKey(); err != nil {
			return c, err
		}
		c.jobs = append(c.jobs, renewing(clock.Clock{}, log, c.identity, func(context.Context) error {
			return a.Renew(c.identity, clock.Clock{}.Now())
		}))
		own, _ := netip.ParseAddr(p.Address)
		c.servers = openKnown(p, nil, true, log)
		c.registry, err = c.servers.dial(ctx, "", c.identity.ToServer(), own)
		return c, err
	}
	if m.Host != pando.HostName(p.Host) {
		return c, fmt.Errorf("%w: this host joined as %s and is now named %s; "+
			"start it with --host %[2]s, or `pando down --purge` and join again",
			pando.ErrInvalid, m.Host, p.Host)
	}
	serves, err := p.isServer()
	if err != nil {
		return c, err
	}
	c.servers = openKnown(p, m, serves, log)
	err = renew(ctx, p, m, c.servers)
	for range moveTries {
		if !errors.Is(err, pando.ErrExists) || pando.Sleep(ctx, clock.Clock{}, time.Second) != nil {
			break
		}
		err = renew(ctx, p, m, c.servers) // this host has moved, and its former lease is about to end
	}
	if errors.Is(err, pando.ErrUnavailable) {
		log.Warn("the server does not answer; instances here keep running", "error", err)
	} else if err != nil {
		return c, err
	}
	c.identity, c.slot, c.server, c.probes = m.Identity, m.Slot, m.Server, m.Probes
	if serves {
		c.server = "" // this host's own server answers its operators
	}
	c.jobs = []job{renewing(clock.Clock{}, log, m.Identity, func(ctx context.Context) error {
		return renew(ctx, p, m, c.servers)
	})}
	own, _ := netip.ParseAddr(p.Address)
	c.registry, err = c.servers.dial(ctx, m.Store, m.Identity.ToServer(), own)
	return c, err
}

// agentFaces returns jobs that serve the agent to this host, and over TLS to the other members. On
// a host without a server it also forwards the operators' API to the server.
func agentFaces(
	p place, c cluster, files api.Files, f faces,
) ([]job, error) {
	own, err := listen(p.agent(), 0o600)
	if err != nil {
		return nil, err
	}
	jobs := []job{serveHTTP(own, f.forOwn)}
	if p.Listen != "" {
		open, err := listenTLS(p.open(agentPort), c.identity.Members())
		if err != nil {
			return nil, err
		}
		keeper := newDoorkeeper(c.registry)
		keeper.news = c.servers.learn
		jobs = append(jobs, serveHTTP(open, keeper.guard(fromServer(f.forPeers))), keeper.run)
	}
	if c.server != "" {
		operators, err := listen(p.api(), 0o660)
		if err != nil {
			return nil, err
		}
		face := api.WithHostMetrics(api.Elsewhere(c.server, c.toServer(serverWaitMax)), f.metrics)
		carry := api.Carry(files, face, api.Elsewhere(c.server, c.toServer(deployWaitMax)))
		jobs = append(jobs, serveHTTP(operators, carry))
		if p.HTTP != "" {
			open, err := openReadable(p, face)
			if err != nil {
				return nil, err
			}
			jobs = append(jobs, open)
		}
	}
	return jobs, nil
}

// toServer returns connections to the first server that answers.
func (c cluster) toServer(wait time.Duration) *http.Transport {
	return &http.Transport{
		DisableCompression: true, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: wait,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.servers.reach(ctx, c.identity.ToServer())
		},
	}
}

// deployWaitMax is how long a deploy on a member waits for the server, which brings an image or a
// bundle first.
const deployWaitMax = 10 * time.Minute

// serverWaitMax is how long a command on a member waits for the server to begin its answer.
const serverWaitMax = 10 * time.Second
