// Package daemon holds the long-running programs of pando, and the commands that start, stop and
// join them on this machine. It chooses the drivers and joins api to control and agent.
//
// It makes no other decision, and an operator's command never needs it.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/control"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/systemd"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/sandbox/process"
	"pando.run/pando/driver/store/deeds"
	"pando.run/pando/driver/store/etcd"
)

// Server returns `pando server`.
func Server() *cobra.Command {
	var p place
	c := &cobra.Command{
		Use: "server", Short: "run the store, the control loop and the operators' API",
		Example: "  pando server --data-dir /var/lib/pando", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return anew(serve(c.Context(), p)) },
	}
	p.folderFlags(c)
	p.networkFlags(c)
	p.poolFlag(c)
	p.labelFlag(c)
	p.Store.flags(c)
	for _, name := range []string{"pool", "label"} {
		_ = c.Flags().MarkHidden(name) // the server only remembers it, for `pando daemons restart`
	}
	return c
}

// serve runs the server until ctx ends.
func serve(ctx context.Context, p place) error {
	if err := p.complete(); err != nil {
		return err
	}
	if os.Geteuid() != serverUser {
		return demoteServer(p)
	}
	log, err := settle(p, "server")
	if err != nil {
		return err
	}
	authority, identity, err := serverTrust(p)
	if err != nil {
		return err
	}
	store, err := startStore(ctx, p, authority, identity, log)
	if err != nil {
		return err
	}
	defer store.Close()
	peers := peer.New(peer.Reach{
		Own: pando.HostName(p.Host), Socket: p.agent(), TLS: identity.ToHost, Clock: clock.Clock{},
	})
	defer peers.Close()
	ctl := control.New(control.Config{
		Registry: store.Registry(), Peers: peers, Clock: clock.Clock{}, IDs: names{}, Log: log,
		Name: p.Host, Heard: store.Registry().Heard, Answers: answersAt, Writable: writable,
		Taken: takenPort(ctx, p, peers), Vault: authority.Vault(), Process: processFigures(store),
		Authority: fingerprint(authority), Audited: deeds.Open(filepath.Join(p.logs(), "audit.log")).Add,
	})
	store.Decide(ctl)
	admitOwn(ctx, ctl, p, log)
	ops, err := withImages(ctl, p, authority, peers, log)
	if err != nil {
		return err
	}
	face := withHostMetrics(p, api.OperatorsHandler(ops, leads(store.Registry())))
	operators, asks, err := listenHere(p)
	if err != nil {
		return err
	}
	jobs := []job{
		ctl.Run, serveHTTP(operators, face), serveHTTP(asks, asksOf(p, ctl)),
		until(p, store.Err()), dismissal(p, store.Registry()), ops.keepImages(log),
	}
	if p.Listen != "" {
		forHosts, err := serveHosts(admission{p, ctl, authority}, identity, store.Registry(), face)
		if err != nil {
			return err
		}
		jobs = append(jobs, forHosts...)
		jobs = append(jobs, renewing(clock.Clock{}, log, identity, func(context.Context) error {
			return renewServer(p, authority, identity)
		}))
	}
	if p.HTTP != "" {
		open, err := openReadable(p, face)
		if err != nil {
			return err
		}
		jobs = append(jobs, open)
	}
	log.Info("ready", "store", p.Store.Endpoints, "api", p.api(), "states", p.HTTP, "hosts", p.Listen)
	systemd.Ready()
	jobs = append(jobs, signOfLife(func() {
		_, _ = ctl.Service(ctx, pando.ServiceKey{}) // it takes the lock of every decision
	}))
	return together(ctx, jobs...)
}

// listenHere opens the sockets for the operators and the agent of this host. The operators' is of
// root's group, which is the server's, and an operator may give it to another one.
func listenHere(p place) (operators, asks net.Listener, err error) {
	if operators, err = listen(p.api(), 0o660); err != nil {
		return nil, nil, err
	}
	asks, err = listen(p.control(), 0o600)
	return operators, asks, err
}

// startStore starts the store of this server: a single one, or one of several.
func startStore(
	ctx context.Context, p place, authority *trust.Authority, identity *trust.Identity,
	log *slog.Logger,
) (*etcd.Server, error) {
	peers, err := p.peers(identity)
	if err != nil {
		return nil, err
	}
	c := etcd.ServerConfig{
		Dir: filepath.Join(p.Data, "store"), ClientSocket: p.store(), Log: log,
		Members: storeForMembers(p, identity), Peers: peers,
	}
	if peers != nil {
		c.Name = p.Host
	}
	if p.Store.there() {
		f, err := p.Store.config()
		if err != nil {
			return nil, err
		}
		f.Accept, c.Foreign = ownStore(p, authority), &f
	}
	store, err := etcd.Start(ctx, c)
	if errors.Is(err, etcd.ErrRemoved) {
		return nil, errors.Join(err, leaveServers(p))
	}
	if err != nil && p.Store.there() {
		return nil, err
	}
	if err != nil {
		return nil, damaged(p, err)
	}
	return store, nil
}

// renewServer renews the certificate of the server, also in the files for the other servers.
func renewServer(p place, a *trust.Authority, i *trust.Identity) error {
	if err := a.Renew(i, clock.Clock{}.Now()); err != nil {
		return err
	}
	s, err := p.readSeveral()
	if err == nil && s != nil {
		_, err = i.WriteFiles(p.trust())
	}
	return err
}

// admitOwn records this host as the member with the server.
func admitOwn(ctx context.Context, ctl *control.Control, p place, log *slog.Logger) {
	h := p.record()
	own := pando.Member{Name: h.Name, Address: h.Address, Address6: h.Address6, Server: true}
	if _, err := ctl.Admit(ctx, own, false, nil); err != nil {
		log.Warn("cannot write the membership of this host", "error", err)
	}
}

// serveHosts returns the jobs that admit other hosts and serve the operators' API to members.
func serveHosts(
	a admission, identity *trust.Identity, registry *etcd.Registry, face http.Handler,
) ([]job, error) {
	open, err := listenTLS(a.open(joinPort), identity.Anybody())
	if err != nil {
		return nil, err
	}
	keeper := newDoorkeeper(registry)
	more := promotion{a, registry, make(chan struct{}, 1)}
	return []job{serveHTTP(open, welcome(more, keeper, face)), keeper.run, more.run}, nil
}

// openReadable serves the part of the operators' API that needs no access check.
func openReadable(p place, face http.Handler) (job, error) {
	open, err := net.Listen("tcp", p.HTTP)
	if err != nil {
		return nil, fmt.Errorf("listen for clones of states and for monitoring: %w; "+
			"choose another address with --http", err)
	}
	own, _ := os.Hostname()
	return serveHTTP(bounded(open), api.Readable(face, own, p.Host)), nil
}

// damaged adds advice to the error of a store that does not start. It leaves the check of the files
// to etcd.
func damaged(p place, err error) error {
	if at := new(net.OpError); errors.As(err, &at) && at.Net == "tcp" {
		return fmt.Errorf("%w; choose another address with --listen", err)
	}
	had, _ := p.hasStore()
	intact := errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, pando.ErrExists) ||
		errors.Is(err, pando.ErrStoreFull)
	if !had || intact {
		return err
	}
	return fmt.Errorf("%w; %s", err, p.advice())
}

// serverTrust opens the authority of this host's cluster and the server's own certificate.
func serverTrust(p place) (*trust.Authority, *trust.Identity, error) {
	if err := p.mayServe(); err != nil {
		return nil, nil, err
	}
	a, err := trust.OpenAuthority(p.trust(), clock.Clock{}.Now())
	if err != nil {
		return nil, nil, err
	}
	i, err := a.Identity("", clock.Clock{}.Now())
	return a, i, err
}

// storeForMembers returns the configuration by which other hosts reach the store. It returns nil if
// other hosts have no access.
func storeForMembers(p place, i *trust.Identity) *etcd.Members {
	if p.Listen == "" {
		return nil
	}
	return &etcd.Members{
		Listen: p.open(storePort), TLS: recognizing(i.Members("h2")),
		HostOf: trust.HostOf, Clock: clock.Clock{},
		Bound: bounded,
	}
}

// leads returns a check that the store answers and a control leads.
func leads(r pando.Registry) func(context.Context) error {
	return func(ctx context.Context) error {
		s, err := r.Snapshot(ctx, pando.LeaderKey("control"))
		if err == nil && len(s.Records) == 0 {
			err = fmt.Errorf("%w: no control leads yet", pando.ErrUnavailable)
		}
		return err
	}
}

// writable reports whether the program of a spec may write to its folder on this host. It returns
// false if the folder or the user does not exist.
func writable(s pando.Spec) bool {
	may, err := process.Writable(s)
	return err == nil && may
}
