package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/agent"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/dns"
	"pando.run/pando/driver/cluster/git"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/systemd"
	"pando.run/pando/driver/network/ebpf"
	"pando.run/pando/driver/network/front"
	"pando.run/pando/driver/network/nat"
	"pando.run/pando/driver/network/uplink"
	"pando.run/pando/driver/sandbox/cgroup"
	"pando.run/pando/driver/sandbox/image"
	"pando.run/pando/driver/sandbox/probe"
	"pando.run/pando/driver/sandbox/process"
	"pando.run/pando/driver/sandbox/process/shim"
	"pando.run/pando/driver/sandbox/process/wire"
	"pando.run/pando/driver/sandbox/vm"
	"pando.run/pando/driver/store/bolt"
	"pando.run/pando/driver/store/book"
	"pando.run/pando/driver/store/sighting"
)

// Agent returns `pando agent`.
func Agent() *cobra.Command {
	var p place
	c := &cobra.Command{
		Use: "agent", Short: "run the host loop: instances, steering, the self API",
		Example: "  pando agent --uplink eth0\n  pando agent --join 192.0.2.10 --token pando1…",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return anew(tend(c.Context(), p)) },
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
	log, err := settle(p, "agent")
	if err != nil {
		return err
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
	steering, err := openWays(ctx, p, c.probes, log)
	if err != nil {
		return err
	}
	defer steering.Close()
	h := introduce(p, log)
	peers := peer.New(peer.Reach{Own: h.Name, Socket: p.agent(), TLS: c.identity.ToHost,
		Clock: clock.Clock{}})
	defer peers.Close()
	images, err := openImages(p, peers, log)
	if err != nil {
		return err
	}
	sandboxes, err := openSandboxes(p, images, steering.Prepare, log)
	if err != nil {
		return err
	}
	defer sandboxes.Close()
	others := openLiveness(p, c, log)
	defer others.close()
	speaker, err := routers(p, log)
	if err != nil {
		return err
	}
	resolvers := &dns.Silent{Clock: clock.Clock{}}
	a := agent.New(agent.Config{
		Host: h, Clock: clock.Clock{}, IDs: names{}, Log: log, Peers: peers,
		Server: agent.Server{Registry: c.registry, Control: c.leader(p, peers),
			Secrets: c.secrets(p, peers), SnapshotKeys: c.snapshotKeys(p, peers),
			Sightings: sighting.Folders{Data: p.Data, Run: p.Run}},
		Programs: programs(p, sandboxes, images, log),
		Packets: agent.Packets{Steering: steering, Liveness: others.liveness, Outbound: outbound(h, log),
			Traffic: uplink.Traffic, Queues: uplink.Queues, Uplinks: p.Uplinks,
			Link: uplink.New(p.Uplinks, clock.Clock{}).Busiest, Path: steering.Path},
		VIPs: agent.VIPs{Announcer: announcer(p, log), Peers: peers, Flows: steering.Flows,
			Routers: speaker, Ends: endsFor(p, log)},
		States:  agent.States{Objects: objects, Journals: p.journals(), Git: git.Handler},
		Process: agent.Process{Worked: clock.Worked, Logged: logged.figures, Resolvers: resolvers.String},
	})
	faces, err := agentFaces(p, c, images, facesOf(p, a, images, c.imageRight(p, peers), objects))
	if err != nil {
		return err
	}
	defer answerNames(h, a, resolvers, log)()
	systemd.Ready() // a missing server is no reason to start this agent again
	jobs := append(append(faces, c.jobs...), a.Run, c.demotion(p), sweepImages(p, images, a, log),
		steering.mending(log), reviving(p, log), signOfLife(func() {
			a.VIPs("", "") // it takes the agent's lock
		}))
	return together(ctx, jobs...)
}

// programs returns the programs of a host, with what they have on it.
func programs(
	p place, sandboxes *process.Driver, images *image.Store, log *slog.Logger,
) agent.Programs {
	return agent.Programs{
		Sandboxes: sandboxes, Prober: probe.New(), Images: images,
		Snapshots: snapshotsIn(images, log), Volumes: sandboxes.VolumeStore(),
		Disk: sandboxes.VolumeStore(), Books: book.File(filepath.Join(p.Data, "work.json")),
		Serve: api.SelfHandler, OpenLog: sandboxes.OpenLog,
	}
}

// faces are the handlers of an agent: for the other hosts, for this one, and for its metrics.
type faces struct{ forPeers, forOwn, metrics http.Handler }

func facesOf(
	p place, a *agent.Agent, images *image.Store,
	mayHave func(context.Context, pando.ImageQuestion) error, objects *bolt.Store,
) faces {
	hosts := a.HostAgent()
	images.Member = a.HasHostAt // addresses that no registry of a token may have
	forPeers := peer.ObjectsHandler(peer.WithImages(peer.CopyHandler(peer.VIPHandler(
		peer.VolumesHandler(peer.Handler(hosts), archiveOf(p)), a.VIPHolder()), hosts), newLender(images, mayHave)), objects.Copy)
	metrics := api.HostMetrics(a.Reporter())
	forOwn := peer.OwnHandler(a, front.Owner, forPeers)
	return faces{forPeers, api.WithHostMetrics(forOwn, metrics), metrics}
}

// introduce returns this host's record, after the ways to and from its instances are open.
func introduce(p place, log *slog.Logger) pando.Host {
	h := p.record()
	h.Tunnel = receives(p, log)
	if err := nat.Translate(h.Instances4, h.Instances6); err != nil { // instances still serve
		log.Warn("instances of this host cannot open connections to other machines", "error", err)
	}
	return h
}

// outbound shares the tracked connections of this host among tenants, or returns nil.
func outbound(h pando.Host, log *slog.Logger) pando.Outbound {
	shares, err := nat.ShareConnections(h.Instances4, h.Instances6, nat.ConnectionBound())
	if err != nil {
		log.Warn("one tenant may take all connections of instances to other machines", "error", err)
		return nil
	}
	return shares
}

// answerNames answers the names of services until the caller calls close.
func answerNames(
	h pando.Host, a *agent.Agent, silent *dns.Silent, log *slog.Logger,
) (close func()) {
	answers := dns.New(dns.Config{
		Addr: netip.AddrPortFrom(pando.Gateway4, 53).String(), Lookup: a.VIPs,
		Endpoints: a.Endpoints, Aliased: a.Aliased, Recurses: recurses(h),
		Owner: ownerAt(h, a.InstanceAt), Resolvers: resolversAt(a), Silent: silent,
	})
	if err := answers.Start(); err != nil {
		log.Warn("this host does not answer names of services", "error", err)
		return func() {}
	}
	return func() { answers.Close() }
}

// ownerAt returns the tenants of the addresses of instances. An address of no known instance has an
// owner as well: the programs of the host alone have the reserve of operators.
func ownerAt(
	h pando.Host, instanceAt func(netip.Addr) (pando.ServiceKey, pando.Spec, bool),
) func(netip.Addr) (pando.Tenant, bool) {
	return func(a netip.Addr) (pando.Tenant, bool) {
		if !h.Instances4.Contains(a) && !h.Instances6.Contains(a) {
			return "", false
		}
		s, _, _ := instanceAt(a)
		return s.Tenant, true
	}
}

// resolversAt returns the resolvers that an instance has by its spec. The hosts are not among them: an
// instance has no way to their ports either.
func resolversAt(a *agent.Agent) func(netip.Addr) []netip.AddrPort {
	return func(from netip.Addr) (out []netip.AddrPort) {
		_, spec, _ := a.InstanceAt(from)
		for _, text := range spec.DNS {
			if one, err := netip.ParseAddr(text); err == nil && !a.HasHostAt(one) && !isOwn(one) {
				out = append(out, netip.AddrPortFrom(one, dns.Port))
			}
		}
		return out
	}
}

// isOwn reports whether an address is one of this machine.
func isOwn(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(own net.Addr) bool {
		p, err := netip.ParsePrefix(own.String())
		return err == nil && p.Addr().Unmap() == a
	})
}

// recurses returns a test for addresses that may resolve external names at the host's DNS. These
// are the host's own addresses and its instances' addresses.
func recurses(h pando.Host) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		if a.IsLoopback() || h.Instances4.Contains(a) || h.Instances6.Contains(a) {
			return true
		}
		return isOwn(a)
	}
}

// receives reports whether other hosts can reach the instances of this one by a tunnel.
func receives(p place, log *slog.Logger) bool {
	if p.Listen == "" || p.Steer != steerEBPF {
		return false // no host joins, or the switch has tunnels of its own
	}
	if err := ebpf.Tunnels(); err != nil {
		log.Warn("other hosts send their clients here by routes, not by a tunnel", "error", err)
		return false
	}
	return true
}

func openSandboxes(
	p place, images *image.Store, made func(pando.Link) error, log *slog.Logger,
) (*process.Driver, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the pando binary: %w", err)
	}
	groups, err := cgroup.Open(cgroup.Root)
	if err != nil {
		return nil, err
	}
	h, freezer := p.record(), cli.Freezer()
	freezer.Cache = filepath.Join(p.Data, "criu")
	config := process.Config{
		Host: h.Name, RunDir: p.sandboxes(), LogDir: p.logs(),
		Self:    process.ShimCommand(self),
		Prefix4: h.Instances4, Prefix6: h.Instances6, Cgroups: groups, Groups: cgroup.Root,
		Hidden: []string{p.Data}, Volumes: p.volumes(), Users: p.users(), Freezer: freezer,
		Forward: nat.Forward, Seal: nat.Seal, Unseal: nat.Unseal, Pool: p.Pool,
		Machine: vm.Command, PowerOff: vm.PowerOff,
		Made: made, Clock: clock.Clock{}, Log: log,
	}
	if images != nil {
		config.Images, config.Layers = images, images.LayersDir()
	}
	return process.New(config)
}

// Shim returns the hidden command that holds one sandbox.
func Shim() *cobra.Command {
	return &cobra.Command{
		Use: wire.ShimRole, Short: "hold one sandbox (started by the agent)",
		Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return cli.Exit(shim.Main(args)) },
	}
}

// snapshotsIn returns the snapshots in this host's store, or nil if this host makes none.
func snapshotsIn(images *image.Store, log *slog.Logger) pando.Snapshots {
	if err := cli.Freezer().Missing(); err != nil {
		log.Info("this host makes no snapshots", "reason", err)
		return nil
	}
	return image.Snapshots{Store: images}
}
