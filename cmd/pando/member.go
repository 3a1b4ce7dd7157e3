package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/driver/etcd"
	"pando.run/pando/driver/peer"
	"pando.run/pando/driver/trust"
	"pando.run/pando/driver/wall"
	"pando.run/pando/world"
)

// The ports between the hosts of a cluster. All of them use TLS.
const (
	joinPort  = 7401 // of the server: hosts join here, members read the operators' API
	storePort = 7402 // of the server: the registry
	agentPort = 7403 // of every host: its agent
)

func (p place) trust() string        { return filepath.Join(p.Data, "trust") }
func (p place) open(port int) string { return net.JoinHostPort(p.Listen, strconv.Itoa(port)) }
func (p place) endpoint() string     { return "https://" + p.open(agentPort) }
func (p place) hasStore() (bool, error) {
	_, err := os.Stat(filepath.Join(p.Data, "store"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// joinFlags adds the flags that make a host a member.
func (p *place) joinFlags(c *cobra.Command) {
	c.Flags().StringVar(&p.Join, "join", "", "become a host of the cluster whose server is at this address, instead of one's own")
	c.Flags().StringVar(&p.Token, "token", "", "what 'pando token' printed on the server's host; needed once")
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
			return nil, fmt.Errorf("%w: this host is a member of the cluster of %s; to leave it: pando down --purge", pando.ErrExists, m.Server)
		}
		return m, nil
	}
	if own, err := p.hasStore(); err != nil || own {
		return nil, errors.Join(err, fmt.Errorf("%w: this host has a cluster of its own in %s; to forget it with all that is in it: pando down --purge", pando.ErrExists, p.Data))
	}
	if p.Token == "" {
		return nil, usageError{fmt.Errorf("--join needs a --token: `pando token` on %s prints one", server)}
	}
	identity, err := trust.ByToken(p.Token)
	if err != nil {
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

func (p place) joining(i *trust.Identity) (peer.Joining, error) {
	request, err := i.Request()
	return peer.Joining{Host: pando.HostName(p.Host), Address: p.Address, Address6: p.address6, Layout: world.CurrentLayout(), Version: version, Request: request}, err
}

func accept(p place, m *trust.Membership, got peer.Joined) error {
	if err := m.Identity.Accept(got.Certificate, got.Authority); err != nil {
		return fmt.Errorf("join the cluster of %s: %w", m.Server, err)
	}
	m.Slot, m.Store = got.Slot, got.Store
	return m.Save(p.trust())
}

// renew presents the certificate of a member and its record layout to the server, and stores the
// new certificate. The agent starts if the server does not answer, and does not start if the server
// refuses.
func renew(ctx context.Context, p place, m *trust.Membership) error {
	asked, err := p.joining(m.Identity)
	if err != nil {
		return err
	}
	got, err := peer.Join(ctx, m.Server, m.Identity.ToServer(), asked)
	if err == nil {
		err = accept(p, m, got)
	}
	return err
}

// renewing returns a job that calls renew periodically until ctx ends.
func renewing(p place, m *trust.Membership, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		for pando.Sleep(ctx, wall.Clock{}, renewEvery) == nil {
			if err := renew(ctx, p, m); err != nil {
				log.Warn("this host's certificate is not renewed", "ends", m.Identity.Ends(), "error", err)
			}
		}
		return ctx.Err()
	}
}

func tokenCommand(o *command) *cobra.Command {
	var p place
	var keep time.Duration
	var uses int
	c := &cobra.Command{
		Use: "token", Short: "print a token by which other hosts join this cluster",
		Long: "Prints a token, and the command line that makes another host a member. The token carries the hash of the cluster's authority, so\n" +
			"that the host joins no other cluster. It admits one host, or as many as --uses says, until it ends. Run it on the server's host, as root.",
		Example: "  pando token\n  pando token --for 10m --uses 3 -o json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := p.complete(); err != nil {
				return err
			}
			return o.token(p, keep, uses)
		},
	}
	c.Flags().StringVar(&p.Run, "run-dir", "/run/pando", "sockets of the daemons")
	c.Flags().DurationVar(&keep, "for", time.Hour, "how long hosts can join by it")
	c.Flags().IntVar(&uses, "uses", 1, "how many hosts can join by it")
	return c
}

func (o *command) token(p place, keep time.Duration, uses int) error {
	if keep <= 0 {
		return fmt.Errorf("%w: a token that ends before it is used: --for %s", pando.ErrInvalid, keep)
	}
	live, err := running(p)
	if err != nil {
		return err
	}
	if _, serves := daemon(live, "server"); !serves {
		return fmt.Errorf("%w: the server of this cluster is on another host; `pando hosts` shows which: make the token there", pando.ErrNotFound)
	}
	if live.Listen == "" {
		return fmt.Errorf("%w: the server listens for no other host; start it again with --listen ADDRESS", pando.ErrRefused)
	}
	a, err := trust.OpenAuthority(live.trust(), time.Now())
	if err != nil {
		return err
	}
	until := time.Now().Add(keep).Truncate(time.Second)
	token, err := a.Token(until, uses)
	if err != nil {
		return err
	}
	is := struct {
		Token string    `json:"token"`
		Join  string    `json:"join"`
		Until time.Time `json:"until"`
		Uses  int       `json:"uses"`
	}{token, live.open(joinPort), until, uses}
	return o.show(is, func(w io.Writer) {
		on := "the other host"
		if uses > 1 {
			on = fmt.Sprintf("%d other hosts", uses)
		}
		fmt.Fprintf(w, "until %s, on %s:\n  pando up --join %s --token %s\n", until.Format("15:04:05"), on, live.Listen, token)
	})
}

// cluster holds the parts of the host's cluster that the agent needs.
type cluster struct {
	registry *etcd.Registry
	identity *trust.Identity
	slot     int
	server   string // address:port, if the server is on another host
	jobs     []func(context.Context) error
}

// enter finds the cluster of this host. That is its own cluster, with the server on this host, or
// the cluster that the host joined.
func enter(ctx context.Context, p place, log *slog.Logger) (c cluster, err error) {
	m, err := join(ctx, p)
	if err != nil {
		return c, err
	}
	if m == nil {
		a, err := trust.OpenAuthority(p.trust(), wall.Clock{}.Now())
		if err != nil {
			return c, err
		}
		if c.identity, err = a.Identity(pando.HostName(p.Host), wall.Clock{}.Now()); err != nil {
			return c, err
		}
		c.jobs = append(c.jobs, renewingOwn(a, log, c.identity, nil))
		c.registry, err = etcd.Dial(ctx, "unix://"+p.store(), nil)
		return c, err
	}
	if m.Host != pando.HostName(p.Host) {
		return c, fmt.Errorf("%w: this host joined as %s and is called %s now: start it with --host %s, or `pando down --purge` and join anew", pando.ErrInvalid, m.Host, p.Host, m.Host)
	}
	if err := renew(ctx, p, m); errors.Is(err, pando.ErrUnavailable) {
		log.Warn("the server does not answer; what runs here goes on", "error", err)
	} else if err != nil {
		return c, err
	}
	c.identity, c.slot, c.server, c.jobs = m.Identity, m.Slot, m.Server, []func(context.Context) error{renewing(p, m, log)}
	c.registry, err = etcd.Dial(ctx, m.Store, m.Identity.ToServer())
	return c, err
}

// agentFaces returns jobs that serve the agent to this host, and over TLS to the other members. On
// a host without a server it also forwards the operators' API to the server.
func agentFaces(p place, c cluster, h, forOwn http.Handler) ([]func(context.Context) error, error) {
	own, err := listen(p.agent(), 0o600)
	if err != nil {
		return nil, err
	}
	jobs := []func(context.Context) error{serveHTTP(own, forOwn)}
	if p.Listen != "" {
		open, err := listenTLS(p.open(agentPort), c.identity.Members())
		if err != nil {
			return nil, err
		}
		keeper := newDoorkeeper(c.registry)
		jobs = append(jobs, serveHTTP(open, keeper.guard(h)), keeper.run)
	}
	if c.server != "" {
		operators, err := listen(p.api(), 0o660)
		if err != nil {
			return nil, err
		}
		t := &http.Transport{
			TLSClientConfig: c.identity.ToServer(), DisableCompression: true, IdleConnTimeout: time.Minute,
			DialContext: (&net.Dialer{Timeout: serverWaitMax}).DialContext, ResponseHeaderTimeout: serverWaitMax,
		}
		face := api.Elsewhere(c.server, t)
		jobs = append(jobs, serveHTTP(operators, face))
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

// serverWaitMax is how long a command on a member waits for the server to begin its answer.
const serverWaitMax = 10 * time.Second

// control returns the direct connection to the server's decisions if the server is on this host.
// Otherwise it returns nil, and the agent submits its asks through the store.
func (c cluster) control(p place, peers *peer.Client) pando.Decider {
	if c.server != "" {
		return nil
	}
	return peer.Control{Client: peers, Server: pando.Host{Name: "server", Endpoint: "unix://" + p.control()}}
}

// resign ends this host's membership on the server, for `pando down --purge`. The name and the slot
// of the host become free.
func resign(ctx context.Context, m *trust.Membership) error {
	ctx, cancel := context.WithTimeout(ctx, serverWaitMax)
	defer cancel()
	t := &http.Transport{TLSClientConfig: m.Identity.ToServer(), DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(ctx, http.MethodDelete, "https://"+m.Server+"/v1/hosts/"+string(m.Host)+"?force=true", nil)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest && resp.StatusCode != http.StatusNotFound {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	return nil
}
