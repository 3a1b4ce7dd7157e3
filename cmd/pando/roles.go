package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/agent"
	"pando.run/pando/api"
	"pando.run/pando/balance"
	"pando.run/pando/control"
	"pando.run/pando/driver/bolt"
	"pando.run/pando/driver/cgroup"
	"pando.run/pando/driver/dns"
	"pando.run/pando/driver/ebpf"
	"pando.run/pando/driver/etcd"
	"pando.run/pando/driver/git"
	"pando.run/pando/driver/nftables"
	"pando.run/pando/driver/peer"
	"pando.run/pando/driver/probe"
	"pando.run/pando/driver/process"
	"pando.run/pando/driver/trust"
	"pando.run/pando/driver/wall"
	"pando.run/pando/lab"
)

// roles returns the commands that run or manage long-running parts: the daemons, the programs that
// they start, and the lab.
func roles(o *command) []*cobra.Command {
	return []*cobra.Command{upCommand(o), restartCommand(o), downCommand(o), tokenCommand(o), serverCommand(), agentCommand(), shimCommand(), labCommand(o), labInitCommand()}
}

func serverCommand() *cobra.Command {
	var p place
	c := &cobra.Command{
		Use: "server", Short: "run the store, the control loop and the operators' API",
		Example: "  pando server --data-dir /var/lib/pando", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return serve(c.Context(), p) },
	}
	p.flags(c)
	return c
}

// daemonUmask is the umask of the daemons, independent of the shell that started them. Only root
// can write their files.
const daemonUmask = 0o022

// serve runs the server until ctx ends.
func serve(ctx context.Context, p place) error {
	if err := p.complete(); err != nil {
		return err
	}
	rotateLog(p, "server")
	log := slog.Default().With("role", "server")
	syscall.Umask(daemonUmask)
	if err := os.MkdirAll(p.Run, 0o755); err != nil {
		return fmt.Errorf("make the folder for sockets: %w", err)
	}
	authority, identity, err := serverTrust(p)
	if err != nil {
		return err
	}
	members, err := storeForMembers(p, identity)
	if err != nil {
		return err
	}
	store, err := etcd.Start(ctx, etcd.ServerConfig{Dir: filepath.Join(p.Data, "store"), ClientSocket: p.store(), Members: members, Log: log})
	if err != nil {
		return damaged(p, err)
	}
	defer store.Close()
	peers := peer.New(peer.Reach{
		Own: pando.HostName(p.Host), Socket: p.agent(), TLS: identity.ToHost, Clock: wall.Clock{},
	})
	defer peers.Close()
	ctl := control.New(control.Config{
		Registry: store.Registry(), Peers: peers, Clock: wall.Clock{}, IDs: names{}, Log: log, Name: p.Host,
		Heard: store.Registry().Heard, Writable: writable,
	})
	h := p.record()
	if _, err := ctl.Admit(ctx, pando.Member{Name: h.Name, Address: h.Address, Address6: h.Address6, Server: true}, false); err != nil {
		log.Warn("this host's membership is not written", "error", err)
	}
	face := api.OperatorsHandler(ctl, leads(store.Registry()))
	operators, err := listen(p.api(), 0o660)
	if err != nil {
		return err
	}
	asks, err := listen(p.control(), 0o600)
	if err != nil {
		return err
	}
	jobs := []func(context.Context) error{ctl.Run, serveHTTP(operators, face), serveHTTP(asks, peer.ControlHandler(ctl)), until(store.Err())}
	if p.Listen != "" {
		open, err := listenTLS(p.open(joinPort), identity.Anybody())
		if err != nil {
			return err
		}
		keeper := newDoorkeeper(store.Registry())
		renewed := func() error {
			_, err := storeForMembers(p, identity) // the store reads the files at every handshake
			return err
		}
		jobs = append(jobs, serveHTTP(open, welcome(admission{p, ctl, authority}, keeper, face)), keeper.run,
			renewingOwn(authority, log, identity, renewed))
	}
	if p.HTTP != "" {
		open, err := openReadable(p, face)
		if err != nil {
			return err
		}
		jobs = append(jobs, open)
	}
	log.Info("ready", "api", p.api(), "states", p.HTTP, "hosts", p.Listen)
	return together(ctx, jobs...)
}

// openReadable serves the part of the operators' API that needs no access check.
func openReadable(p place, face http.Handler) (func(context.Context) error, error) {
	open, err := net.Listen("tcp", p.HTTP)
	if err != nil {
		return nil, fmt.Errorf("listen for clones of states and for monitoring: %w; choose another address with --http", err)
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
	if had, _ := p.hasStore(); !had || errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, pando.ErrExists) || errors.Is(err, pando.ErrStoreFull) {
		return err
	}
	return fmt.Errorf("%w; if its files are damaged, restore %s from a copy, or forget everything with `pando down --purge`", err, p.Data)
}

// until returns a job that ends with the store.
func until(ends <-chan error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case err := <-ends:
			return fmt.Errorf("the store ended: %w", err)
		case <-ctx.Done():
			return nil
		}
	}
}

// serverTrust opens the authority of this host's cluster and the server's own certificate.
func serverTrust(p place) (*trust.Authority, *trust.Identity, error) {
	a, err := trust.OpenAuthority(p.trust(), wall.Clock{}.Now())
	if err != nil {
		return nil, nil, err
	}
	i, err := a.Identity("", wall.Clock{}.Now())
	return a, i, err
}

// storeForMembers returns the configuration by which other hosts reach the store. It returns nil if
// other hosts have no access.
func storeForMembers(p place, i *trust.Identity) (*etcd.Members, error) {
	if p.Listen == "" {
		return nil, nil
	}
	m := &etcd.Members{
		Listen: p.open(storePort), HostOf: trust.HostOf, Clock: wall.Clock{}, Bound: bounded,
	}
	var err error
	if m.Certificate, m.Key, m.Authority, err = i.Files(p.trust()); err != nil {
		return nil, fmt.Errorf("write the server's certificate: %w", err)
	}
	return m, nil
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

func agentCommand() *cobra.Command {
	var p place
	c := &cobra.Command{
		Use: "agent", Short: "run the host loop: instances, steering and what instances ask",
		Example: "  pando agent --uplink eth0\n  pando agent --join 192.0.2.10 --token pando1…", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return tend(c.Context(), p) },
	}
	p.flags(c)
	p.joinFlags(c)
	return c
}

// tend runs the agent until ctx ends. Its end affects neither instances nor packets.
func tend(ctx context.Context, p place) error {
	if err := p.complete(); err != nil {
		return err
	}
	rotateLog(p, "agent")
	log := slog.Default().With("role", "agent")
	syscall.Umask(daemonUmask)
	if err := errors.Join(os.MkdirAll(p.Data, 0o750), os.MkdirAll(p.Run, 0o755)); err != nil {
		return fmt.Errorf("make the folders for data and sockets: %w", err)
	}
	c, err := enter(ctx, p, log)
	if err != nil {
		return err
	}
	defer c.registry.Close()
	p.Slot = c.slot
	objects, err := bolt.Open(p.states())
	if err != nil {
		return err
	}
	defer objects.Close()
	steering, err := openSteering(p)
	if err != nil {
		return err
	}
	defer steering.Close()
	h := p.record()
	if err := nftables.Translate(h.Instances4, h.Instances6); err != nil { // instances still serve
		log.Warn("instances of this host cannot open connections to other machines", "error", err)
	}
	sandboxes, err := openSandboxes(p, steering.Prepare, log)
	if err != nil {
		return err
	}
	defer sandboxes.Close()
	peers := peer.New(peer.Reach{
		Own: h.Name, Socket: p.agent(), TLS: c.identity.ToHost, Clock: wall.Clock{},
	})
	defer peers.Close()
	a := agent.New(agent.Config{
		Host: h, Registry: c.registry, Sandboxes: sandboxes, Steering: steering, Prober: probe.New(), Peers: peers,
		Objects: objects, Journals: p.journals(), Clock: wall.Clock{}, IDs: names{}, Log: log,
		Control: c.control(p, peers),
		Serve:   api.SelfHandler, Git: git.Handler,
		OpenLog: func(ctx context.Context, s pando.ServiceKey, i pando.InstanceID, lines int, follow bool) (io.ReadCloser, error) {
			return sandboxes.OpenLog(ctx, s, i, lines, follow)
		},
	})
	forPeers := peer.Handler(a)
	faces, err := agentFaces(p, c, forPeers, peer.OwnHandler(a, forPeers))
	if err != nil {
		return err
	}
	answers := dns.New(dns.Config{Addr: netip.AddrPortFrom(pando.Gateway4, 53).String(), Lookup: a.VIPs, Recurses: recurses(h)})
	if err := answers.Start(); err != nil {
		log.Warn("names of services are not answered on this host", "error", err)
	} else {
		defer answers.Close()
	}
	return together(ctx, append(append(faces, c.jobs...), a.Run)...)
}

// recurses returns a test for addresses that may resolve external names at the host's DNS. These
// are the host's own addresses and its instances' addresses.
func recurses(h pando.Host) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		if a.IsLoopback() || h.Instances4.Contains(a) || h.Instances6.Contains(a) {
			return true
		}
		all, err := net.InterfaceAddrs()
		return err == nil && slices.ContainsFunc(all, func(own net.Addr) bool {
			p, err := netip.ParsePrefix(own.String())
			return err == nil && p.Addr().Unmap() == a
		})
	}
}

func openSteering(p place) (*ebpf.Driver, error) {
	addr, _ := netip.ParseAddr(p.Address)
	return ebpf.Open(ebpf.Config{PinDir: p.pins(), Settings: p.settingsFile(), Uplinks: p.Uplinks, HostAddr: addr, Buckets: balance.Buckets})
}

func openSandboxes(p place, made func(pando.Link) error, log *slog.Logger) (*process.Driver, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the pando binary: %w", err)
	}
	groups, err := cgroup.Open(cgroup.Root)
	if err != nil {
		return nil, err
	}
	h := p.record()
	return process.New(process.Config{
		Host: h.Name, RunDir: p.sandboxes(), LogDir: p.logs(), Self: []string{self},
		Prefix4: h.Instances4, Prefix6: h.Instances6, Cgroups: groups, Groups: cgroup.Root, Hidden: []string{p.Data},
		Pool: p.Pool, Made: made, Clock: wall.Clock{}, Log: log,
	})
}

func shimCommand() *cobra.Command {
	return &cobra.Command{
		Use: "shim", Short: "hold one sandbox (started by the agent)", Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return exit(process.ShimMain(args)) },
	}
}

func labInitCommand() *cobra.Command {
	return &cobra.Command{
		Use: "lab-init", Short: "be the first process of a virtual host", Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return exit(lab.InitMain(args)) },
	}
}

// exit returns the error that ends the process with a code.
func exit(code int) error {
	if code == 0 {
		return nil
	}
	return codeError(code)
}

// together runs jobs until one of them or ctx ends, then ends all of them.
func together(ctx context.Context, jobs ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := make(chan error, len(jobs))
	for _, job := range jobs {
		go func() { ends <- job(ctx) }()
	}
	var first error
	for range jobs {
		err := <-ends
		if first == nil && err != nil && !errors.Is(err, context.Canceled) {
			first = err
		}
		cancel()
	}
	return first
}

// serveHTTP returns a job that serves until ctx ends.
func serveHTTP(l net.Listener, h http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleWaitMax}
		stop := context.AfterFunc(ctx, func() { s.Close() })
		defer stop()
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// listen creates a unix socket with the given mode. It replaces the socket of a dead daemon.
func listen(path string, mode os.FileMode) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("%w: another daemon answers at %s; stop it with `pando down`", pando.ErrExists, path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove a stale socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return l, os.Chmod(path, mode)
}

// writable reports whether the user of a spec may write to a folder of this host. It returns false
// if the folder or the user does not exist.
func writable(dir, user string) bool {
	may, err := process.Writable(dir, user)
	return err == nil && may
}
