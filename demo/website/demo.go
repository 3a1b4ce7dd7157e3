// Package website is the demo of a service. It raises a lab of three hosts, deploys a website in it
// and loads the website with a ramp of real HTTP requests. It kills a host in the middle of the
// ramp. No answered request may be lost. The demo makes no decision for the service.
package website

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/demo/load"
	"pando.run/pando/demo/report"
	"pando.run/pando/demo/screen"
	"pando.run/pando/driver/clock"
	"pando.run/pando/spec"
)

// play holds the arguments of the demo.
type play struct {
	binary, spec, report string
	schedule             string
	load                 load.Config
	hosts                int
	kill                 time.Duration // since the load began; 0: no host dies
	plain                bool
}

// settleWait is how long the number of instances may take to return to its former value after the
// load.
const settleWait = 90 * time.Second

// Demo runs the demo.
func Demo(ctx context.Context, args []string) error {
	p := play{
		load: load.Config{Path: "/", Timeout: 5 * time.Second, ReportEvery: 100 * time.Millisecond},
	}
	flags := flag.NewFlagSet("pando-demo", flag.ContinueOnError)
	flags.StringVar(&p.binary, "pando", "bin/pando", "the pando `binary`")
	flags.StringVar(&p.spec, "spec", "examples/website/several.yaml",
		"`file` of the specs: the last service gets the load, the one with state has its lines")
	flags.StringVar(&p.report, "report", "demo.html", "`file` for the report")
	flags.StringVar(&p.schedule, "schedule", "100,3s:100,10s:2000,8s:2000,8s:100,3s:100",
		"RATE,DURATION:RATE,… in requests per second")
	flags.IntVar(&p.hosts, "hosts", 3, "hosts of the lab, 1 to 100")
	flags.DurationVar(&p.kill, "kill", 9*time.Second,
		"kill the last host this long after the load began, if the load lasts longer (0 = never)")
	flags.IntVar(&p.load.Connections, "connections", 256, "the most connections open at once")
	flags.Float64Var(&p.load.FreshShare, "fresh", 0.1, "share of requests on a new connection, 0 to 1")
	flags.BoolVar(&p.plain, "plain", false, "plain lines, also on a terminal")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("the demo makes namespaces and loads eBPF programs: run it as root")
	}
	var err error
	if p.load.Schedule, err = load.ParseSchedule(p.schedule); err != nil {
		return err
	}
	if p.hosts < 2 || p.load.Schedule.Length() <= p.kill {
		p.kill = 0
	}
	if err := report.Possible(p.report); err != nil {
		return err
	}
	t := newTimeline()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	shown := screen.Show(ctx, stop, t, p.plain || !screen.Terminal(os.Stdout))
	r, err := p.run(ctx, t)
	shown()
	if err != nil {
		return err
	}
	return r.conclude(p, t)
}

// run plays the demo. It leaves the machine as it was.
func (p play) run(ctx context.Context, t *timeline) (r result, err error) {
	specs, err := spec.Load(ctx, p.spec)
	if err != nil {
		return r, err
	}
	name := specs[len(specs)-1].Key()
	t.say(fmt.Sprintf("raising a lab of %d hosts and a client; pando up on each", p.hosts))
	s, err := raise(ctx, p.binary, p.hosts)
	if err != nil {
		return r, screen.Ended(ctx, err)
	}
	defer func() {
		t.say("pando down --purge")
		err = errors.Join(screen.Ended(ctx, err), s.lower())
	}()
	t.say("pando deploy " + p.spec)
	path, err := filepath.Abs(p.spec)
	if err != nil {
		return r, err
	}
	if _, err := s.do(ctx, "deploy", path, "--wait"); err != nil {
		return r, err
	}
	st, err := s.api.Service(ctx, name)
	if err != nil {
		return r, err
	}
	if err := p.offer(ctx, t, s, st); err != nil {
		return r, err
	}
	keeper := name
	for _, one := range slices.Backward(specs) {
		t.say("pando rm " + string(one.Name) + ": its last state is merged")
		if _, err := s.do(ctx, "rm", string(one.Name), "--wait"); err != nil {
			return r, err
		}
		if len(one.State) > 0 {
			keeper = one.Key()
		}
	}
	t.say("git clone of the merged state; counting")
	r.audit, err = s.auditOf(ctx, keeper)
	return r, err
}

// killOne kills the last host once its time has come.
func (p play) killOne(ctx context.Context, t *timeline, s *stage) error {
	if p.kill == 0 || pando.Sleep(ctx, clock.Clock{}, p.kill) != nil {
		return nil
	}
	host := s.lab.Hosts[len(s.lab.Hosts)-1].Name
	t.say("kill -9 of everything on host " + host)
	t.killed(host)
	if err := s.kill(host); err != nil {
		return fmt.Errorf("kill host %s: %w", host, err)
	}
	t.say("the client offers " + p.schedule + "; host " + host + " is dead")
	return nil
}

// offer loads the service and waits until the number of instances is as small as before.
func (p play) offer(ctx context.Context, t *timeline, s *stage, st pando.ServiceStatus) error {
	name := st.ServiceKey
	watch, end := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer end()
	t.start(fmt.Sprintf("%s:%d", st.VIP, st.Ports[0].Published))
	watching.Go(func() { t.observe(watch, s, name) })
	t.say("the client offers " + p.schedule)
	p.load.Address = t.vip
	var killing sync.WaitGroup
	var unkilled error
	killing.Go(func() { unkilled = p.killOne(watch, t, s) })
	err := s.offer(ctx, p.load, p.schedule, t.loaded)
	killing.Wait()
	if err := errors.Join(err, unkilled); err != nil {
		return err
	}
	t.say("the load is over; the copies leave")
	err = s.until(ctx, name, "the copies leave", settleWait, func(now pando.ServiceStatus) bool {
		st = now
		return t.living(st) == st.Scale.Min && st.InRotation == st.Scale.Min
	})
	end()
	watching.Wait()
	t.count(st) // the status that the demo waited for is the last one that counts
	t.explain(ctx, s, name)
	return err
}
