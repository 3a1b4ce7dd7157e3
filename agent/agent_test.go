package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/edge"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

var web = pando.DefaultService("web")

var onlyWeb = []pando.ServiceKey{web}

// bench is one host in virtual time: a real agent over driver/sim, and a test that plays control.
type bench struct {
	*testing.T
	ctx       context.Context
	registry  *sim.Registry
	steering  *sim.Steering
	sandboxes *sim.Sandboxes
	objects   *sim.Objects
	ids       *sim.IDs
	prober    pando.Prober
	front     pando.Steering // replaces steering in the next agent, unless nil
	through   pando.Registry // likewise, the registry
	sightings pando.Sightings
	liveness  edge.Liveness
	worked    func() time.Duration
	agent     *Agent
	stop      func()
	disk      pando.Disk
	outbound  pando.Outbound
	change    func(*Config) // of the next agents; nil: none
}

// onBench runs a test in a bubble, on a host with a service of one revision.
func onBench(t *testing.T, test func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		b := &bench{T: t, ctx: ctx, registry: sim.NewRegistry(1, 0), steering: sim.NewSteering(),
			objects: sim.NewObjects(), ids: &sim.IDs{}}
		program := func(ctx context.Context, s *sim.Sandbox) int { <-ctx.Done(); return 0 }
		b.sandboxes = sim.NewSandboxes(1, program, 0, 0, b.steering)
		defer func() {
			b.stop()
			b.sandboxes.Reboot()
			cancel()
			time.Sleep(2 * Lease) // the simulated leases end after their holders
		}()
		b.put(pando.Service{
			ServiceKey: web, VIP4: pando.VIPs4.Addr().Next().Next(), Current: 1, Target: 1, Latest: 1,
		})
		b.revision(1, pando.StateCounter)
		b.start()
		test(b)
	})
}

func (b *bench) revision(n int, hits pando.StateType) {
	spec := pando.Spec{
		Name: "web", Command: []string{"web"}, Scale: pando.Scale{Min: 1, Max: 3},
		State: map[string]pando.StateType{"hits": hits, "log": pando.StateLog},
	}
	b.put(pando.Revision{
		Service: web, Number: n, Spec: spec.WithDefaults(), State: pando.RevisionCurrent,
	})
}

// start starts an agent. restart stops it and starts the next one.
func (b *bench) start() {
	ctx, cancel := context.WithCancel(b.ctx)
	var steering pando.Steering = b.steering
	if b.front != nil {
		steering = b.front
	}
	var registry pando.Registry = b.registry
	if b.through != nil {
		registry = b.through
	}
	c := Config{
		Host: pando.Host{Name: "h1", Tunnel: b.liveness != nil}, Clock: sim.Clock{}, IDs: b.ids,
		Log: slog.New(slog.DiscardHandler), Peers: sim.NewPeers(),
		Server: Server{Registry: registry, Sightings: b.sightings},
		Programs: Programs{Sandboxes: b.sandboxes, Prober: b.prober, Disk: b.disk,
			Serve: func(pando.Self, pando.InstanceID) http.Handler { return http.NotFoundHandler() }},
		Packets: Packets{Steering: steering, Liveness: b.liveness, Outbound: b.outbound},
		States:  States{Objects: b.objects},
		Process: Process{Worked: b.worked},
	}
	if b.change != nil {
		b.change(&c)
	}
	b.agent = New(c)
	ended := make(chan error)
	go func() { ended <- b.agent.Run(ctx) }()
	b.stop = func() { cancel(); <-ended }
	synctest.Wait()
}

func (b *bench) restart() { b.stop(); b.start() }

func (b *bench) put(v ...pando.Stored) {
	b.Helper()
	if _, err := b.commit(b.ctx, pando.Txn{Put: v}); err != nil {
		b.Fatal(err)
	}
	synctest.Wait()
}

// commit writes a transaction of control, with the endpoints of the services that it changes.
func (b *bench) commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	return b.registry.Commit(ctx, withEndpoints(b.world(), t))
}

// withEndpoints adds the endpoints of the services that a transaction changes, as control does.
func withEndpoints(w *world.World, t pando.Txn) pando.Txn {
	w.Committed(t, w.Seen+1)
	for _, s := range w.Names() {
		svc := w.Services[s].V
		spec, _ := w.SpecOf(s, svc.Target)
		now := pando.EndpointsOf(svc, spec, append(w.Of(s), world.RunsOf(w, s)...))
		if was := w.Endpoints[s]; was.Modified == 0 || !reflect.DeepEqual(was.V, now) {
			t.Put = append(t.Put, now)
		}
	}
	for s, e := range w.Endpoints {
		if _, ok := w.Services[s]; !ok {
			t.Delete = append(t.Delete, e.V.Key())
		}
	}
	return t
}

// pass advances virtual time by d.
func (b *bench) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// world returns the contents of the registry.
func (b *bench) world() *world.World {
	b.Helper()
	now, err := b.registry.Snapshot(b.ctx, pando.Root)
	w := world.New()
	if err = errors.Join(err, w.Apply(now.Records, now.Revision)); err != nil {
		b.Fatal(err)
	}
	return w
}

// serving places an instance of a revision, makes it ready and waits until it is in rotation.
func (b *bench) serving(id pando.InstanceID, revision int) {
	b.Helper()
	b.place(id, revision)
	b.ok(b.agent.self.Ready(b.ctx, id))
	synctest.Wait()
	b.phase(id, pando.PhaseInRotation)
}

func (b *bench) place(id pando.InstanceID, revision int) {
	b.Helper()
	b.put(pando.Instance{
		ID: id, Service: web, Host: "h1", Revision: revision, Weight: 100, Phase: pando.PhasePlaced,
		Reason: "test", Born: time.Now(), Since: time.Now(),
	})
}

// drain starts to drain an instance, as control does.
func (b *bench) drain(id pando.InstanceID, walk bool) {
	b.Helper()
	i := b.world().Instances[id].V.Become(pando.PhaseDraining, time.Now(), "test")
	i.Walk = walk
	b.put(i)
}

// applied waits until this host steers web by its endpoints at a revision.
func (b *bench) applied(at pando.StoreRevision) {
	b.Helper()
	if missing, err := b.agent.Applied(b.ctx, onlyWeb, at); err != nil || missing != "" {
		b.Errorf("applied: %q, %v", missing, err)
	}
}

// phase waits up to a second for the recorded phase of an instance. A recorder collects steps
// before it writes them.
func (b *bench) phase(id pando.InstanceID, want pando.Phase) {
	b.Helper()
	for end := time.Now().Add(time.Second); b.world().Instances[id].V.Phase != want &&
		time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if got := b.world().Instances[id].V; got.Phase != want {
		b.Errorf("%s is %q (%s), want %q", id, got.Phase, got.Reason, want)
	}
}

func (b *bench) gone(id pando.InstanceID) {
	b.Helper()
	if i, ok := b.world().Instances[id]; ok {
		b.Errorf("%s is still there: %s (%s)", id, i.V.Phase, i.V.Reason)
	}
	if n := len(b.sandboxes.All()); n > 0 {
		b.Errorf("%d sandboxes are left", n)
	}
	branches, err := state.Branches(b.objects, web)
	if b.ok(err); len(branches) > 0 {
		b.Errorf("branches %v are left", branches)
	}
}

func (b *bench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) refused(err error) {
	b.Helper()
	if !errors.Is(err, pando.ErrRefused) {
		b.Errorf("got %v, want a refusal", err)
	}
}

// write makes an instance count a hit and log a line. It commits both if commit is set.
func (b *bench) write(id pando.InstanceID, line string, commit bool) {
	b.Helper()
	b.ok(b.agent.self.StatePatch(b.ctx, id, "log", []byte(line)))
	b.ok(b.agent.self.StatePatch(b.ctx, id, "hits", []byte("1")))
	if commit {
		_, err := b.agent.self.StateCommit(b.ctx, id, pando.StateChange{Message: line})
		b.ok(err)
	}
}

// text returns the value of a path as an instance sees it.
func (b *bench) text(id pando.InstanceID, path string) string {
	b.Helper()
	v, err := b.agent.self.StateGet(b.ctx, id, path)
	b.ok(err)
	return string(v.Bytes)
}

func mustEncode(t *testing.T, v any) []byte {
	t.Helper()
	text, err := world.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// merged returns the value of a path in main.
func (b *bench) merged(path string) string {
	b.Helper()
	v, err := state.Open(b.objects, web, map[string]pando.StateType{"log": pando.StateLog}).Read(
		b.world().Heads[web].V.Commit, path)
	if err != nil {
		return err.Error()
	}
	return string(v.Bytes)
}
