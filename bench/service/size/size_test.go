//go:build bench

// Package size measures the loops of control and of an agent at the size of a large cluster.
package size

import (
	"context"
	"encoding/csv"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent"
	"pando.run/pando/control"
	"pando.run/pando/driver/sim"
	"pando.run/pando/driver/store/etcd"
)

const (
	rounds   = 5
	perRound = 5 * time.Second
	services = 2000
	hosts    = 100
	commits  = 100 // per second
	askers   = 50  // services that ask
	each     = 8   // asks of one service at the same time
)

// results are the samples of the run.
type results struct {
	*testing.T
	csv *csv.Writer
}

func (r results) add(round int, series string, value float64) {
	err := r.csv.Write([]string{fmt.Sprint(round), series, fmt.Sprintf("%.3f", value)})
	if err != nil {
		r.Fatal(err)
	}
	r.Logf("round %d: %s: %.3f", round, series, value)
}

func TestSize(t *testing.T) {
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := results{t, csv.NewWriter(f)}
	_ = r.csv.Write([]string{"round", "series", "value"})
	idle := agentCPU(r)
	rate, cost := askRate(r)
	disk := storeAgainstDisk(r)
	few, many := askTime(r, 5), askTime(r, 500)
	r.csv.Flush()
	publish(t,
		row("agent at 100 commits/s, 2,000 services, 100 hosts", "≤ 5 % of a core",
			fmt.Sprintf("%.1f %%", idle), idle <= 5),
		row("durable asks of 50 services", "≥ 3,000/s", fmt.Sprintf("%.0f/s", rate), rate >= 3000),
		fmt.Sprintf("the same: processor time per ask | | | %.0f µs | stated", cost),
		fmt.Sprintf("one durable commit against one raw fdatasync of 8 KiB | | | %.2f × | stated", disk),
		row("ask → placed beside 500 instances, p99 against 5", "≤ 2 ×",
			fmt.Sprintf("%.2f × (%.1f ms)", many/few, many), many <= 2*few))
}

func row(what, goal, got string, held bool) string {
	verdict := "held"
	if !held {
		verdict = "missed"
	}
	return what + " | " + goal + " | | " + got + " | " + verdict
}

func keyOf(n int) pando.ServiceKey {
	return pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%04d", n)))
}

func hostOf(n int) pando.HostName { return pando.HostName(fmt.Sprintf("h%03d", n%hosts)) }

// records returns all that the store has of a service with some instances on its home.
func records(n, instances int) (out []pando.Stored) {
	key, home := keyOf(n), hostOf(n)
	spec := pando.Spec{Name: key.Name, Command: []string{"run"},
		Scale: pando.Scale{Min: instances, Max: 5000}}.WithDefaults()
	spec.Health.Ready.Kind = pando.ProbeExplicit
	svc := pando.Service{ServiceKey: key, Current: 1, Target: 1, Latest: 1, Home: home,
		Phase: pando.ServiceServing,
		VIP6:  netip.AddrFrom16([16]byte{0xfd, 14: byte(n >> 8), 15: byte(n)}),
		VIP4:  netip.AddrFrom4([4]byte{10, 127, byte(1 + n>>8), byte(n)})}
	var all []pando.Instance
	for k := range instances {
		all = append(all, pando.Instance{
			ID: pando.InstanceID(fmt.Sprintf("%s-%d", key.Name, k)), Service: key, Host: home, Revision: 1,
			Weight: 100, Phase: pando.PhaseInRotation, Since: time.Now(),
			Born: time.Now().Add(time.Duration(k)),
		})
	}
	out = append(out, svc, pando.Revision{Service: key, Number: 1, Spec: spec},
		pando.EndpointsOf(svc, spec, all))
	for _, i := range all {
		out = append(out, i)
	}
	return out
}

// change returns a commit as control makes it for an ask of a service.
func change(n, round int) pando.Txn {
	all := records(n, 5)
	ask := pando.Intent{ID: pando.IntentID(fmt.Sprintf("%026d", round)), Service: keyOf(n),
		Verb: pando.VerbReplicate, By: pando.Asker{Kind: pando.AskerInstance, Name: "x"}}
	return pando.Txn{Put: []pando.Stored{
		all[0], all[2], all[3], ask.Become(pando.IntentAsked, time.Now(), "load"),
		pando.Decision{ID: fmt.Sprintf("%026d", round), Service: keyOf(n), At: time.Now()},
	}}
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// agentCPU returns the median share of a core, in percent, that a real agent takes beside the load
// of the store itself.
func agentCPU(r results) float64 {
	var all []float64
	for round := range rounds {
		with, without := oneAgent(r, true), oneAgent(r, false)
		r.add(round, "agent (% of a core)", with-without)
		all = append(all, with-without)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func oneAgent(r results, run bool) float64 {
	ctx, cancel := context.WithCancel(context.Background())
	store := sim.NewRegistry(1, 0)
	for n := range services {
		if _, err := store.Commit(ctx, pando.Txn{Put: records(n, 5)}); err != nil {
			r.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	if run {
		steering := sim.NewSteering()
		a := agent.New(agent.Config{
			Host: pando.Host{Name: "elsewhere"}, Clock: sim.Clock{}, IDs: &sim.IDs{},
			Log: slog.New(slog.DiscardHandler), Peers: sim.NewPeers(),
			Server: agent.Server{Registry: store},
			Programs: agent.Programs{Sandboxes: sim.NewSandboxes(1, nil, 0, 0, steering),
				Serve: func(pando.Self, pando.InstanceID) http.Handler { return http.NotFoundHandler() }},
			Packets: agent.Packets{Steering: steering}, States: agent.States{Objects: sim.NewObjects()},
		})
		go func() { ended <- a.Run(ctx) }()
		for look := time.NewTicker(50 * time.Millisecond); ; <-look.C {
			if all, err := steering.Published(ctx); err != nil || len(all) == services {
				look.Stop()
				break
			}
		}
	} else {
		ended <- nil
	}
	before, begun := cpu(), time.Now()
	tick := time.NewTicker(time.Second / commits)
	dice := rand.New(rand.NewPCG(1, 2))
	for n := 0; time.Since(begun) < perRound; n++ {
		<-tick.C
		if _, err := store.Commit(ctx, change(dice.IntN(services), n)); err != nil {
			r.Fatal(err)
		}
	}
	share := 100 * (cpu() - before).Seconds() / time.Since(begun).Seconds()
	tick.Stop()
	cancel()
	<-ended
	return share
}

// leader is a control that leads over a durable store.
type leader struct {
	*control.Control
	store *etcd.Registry
	fence pando.Fence
	ids   sim.IDs
	stop  func()
}

func lead(r results) *leader {
	dir, err := os.MkdirTemp("", "size")
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	quiet := slog.New(slog.DiscardHandler)
	s, err := etcd.Start(ctx, etcd.ServerConfig{Dir: dir, Log: quiet})
	if err != nil {
		r.Fatal(err)
	}
	l := &leader{store: s.Registry()}
	for n := range hosts {
		fence, _, err := l.store.Join(ctx, pando.Host{Name: hostOf(n), Slot: n}, pando.HostLease)
		if err != nil {
			r.Fatal(err)
		}
		l.fence = fence
	}
	l.Control = control.New(control.Config{
		Registry: l.store, Peers: sim.NewPeers(), Clock: sim.Clock{}, IDs: &l.ids, Log: quiet, Name: "c",
	})
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	l.stop = func() {
		cancel()
		<-ended
		s.Close()
		os.RemoveAll(dir)
	}
	return l
}

func (l *leader) put(r results, all []pando.Stored) {
	for part := range slices.Chunk(all, 200) {
		if _, err := l.store.Commit(context.Background(), pando.Txn{Put: part}); err != nil {
			r.Fatal(err)
		}
	}
}

// wait waits until the control leads: it answers an ask of the first service.
func (l *leader) wait(r results) {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for begun := time.Now(); time.Since(begun) < time.Minute; <-look.C {
		i := l.intent(0)
		if _, err := l.Answer(context.Background(), l.fence, i, func() {}); err == nil {
			return
		}
	}
	r.Fatal("the control does not lead")
}

func (l *leader) intent(n int) pando.Intent {
	now := time.Now()
	return pando.Intent{
		ID: pando.IntentID(l.ids.Sequential(now)), Service: keyOf(n), Verb: pando.VerbReplicate,
		Host: hostOf(n), By: pando.Asker{Kind: pando.AskerOperator},
	}.Become(pando.IntentAsked, now, "load")
}

// ask asks for one more instance and returns the time until it was placed.
func (l *leader) ask(r results, n int) time.Duration {
	now := time.Now()
	i := l.intent(n)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := l.Answer(ctx, l.fence, i, func() {}); err != nil {
		r.Error(err)
	}
	return time.Since(now)
}

// askRate returns the median rate of asks of many services that are answered durably, and the
// median processor time of one ask in microseconds.
func askRate(r results) (perSecond, cost float64) {
	var all, costs []float64
	for round := range rounds {
		l := lead(r)
		for n := range askers {
			l.put(r, records(n, 5))
		}
		l.wait(r)
		var answered atomic.Int64
		var asking sync.WaitGroup
		begun, before := time.Now(), cpu()
		for n := range askers {
			for range each {
				asking.Go(func() {
					for time.Since(begun) < perRound {
						l.ask(r, n)
						answered.Add(1)
					}
				})
			}
		}
		asking.Wait()
		rate := float64(answered.Load()) / time.Since(begun).Seconds()
		one := (cpu() - before).Seconds() * 1e6 / float64(answered.Load())
		l.stop()
		r.add(round, "asks/s", rate)
		r.add(round, "processor time per ask (µs)", one)
		all, costs = append(all, rate), append(costs, one)
	}
	slices.Sort(all)
	slices.Sort(costs)
	return all[len(all)/2], costs[len(costs)/2]
}

// askTime returns the p99 in milliseconds of asks of a service with some instances.
func askTime(r results, instances int) float64 {
	l := lead(r)
	defer l.stop()
	l.put(r, records(0, instances))
	l.wait(r)
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	var all []float64
	for n := range 300 {
		<-pace.C
		took := l.ask(r, 0).Seconds() * 1000
		all = append(all, took)
		r.add(n, fmt.Sprintf("ask → placed beside %d instances (ms)", instances), took)
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

func publish(t *testing.T, rows ...string) {
	t.Helper()
	for _, one := range rows {
		t.Log(one)
	}
	if os.Getenv("UNPUBLISHED") != "" {
		return
	}
	args := []string{"service/size", "--title", "The loops at size", "--unit", "as named"}
	for _, one := range rows {
		args = append(args, "--row", one)
	}
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
}
