// Package website is the demo of a service. It raises a lab, deploys a website in it and loads the
// website with a ramp of real HTTP requests. At the end no request may be lost. The demo makes no
// decision for the service.
package website

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/demo/load"
	"pando.run/pando/demo/report"
	"pando.run/pando/demo/screen"
	"pando.run/pando/spec"
)

// play holds the arguments of the demo.
type play struct {
	binary, spec, report string
	schedule             string
	load                 load.Config
	plain                bool
}

// settleWait is how long the number of instances may take to return to its former value after the
// load.
const settleWait = 90 * time.Second

// Demo runs the demo.
func Demo(ctx context.Context, args []string) error {
	p := play{
		load: load.Config{Path: "/", Timeout: 10 * time.Second, ReportEvery: 100 * time.Millisecond},
	}
	flags := flag.NewFlagSet("pando-demo", flag.ContinueOnError)
	flags.StringVar(&p.binary, "pando", "bin/pando", "the pando `binary`")
	flags.StringVar(&p.spec, "spec", "examples/website/pando.yaml", "`file` of the website's spec")
	flags.StringVar(&p.report, "report", "demo.html", "`file` for the report")
	flags.StringVar(&p.schedule, "schedule", "100,3s:100,10s:3000,8s:3000,8s:100,3s:100",
		"RATE,DURATION:RATE,… in requests per second")
	flags.IntVar(&p.load.Connections, "connections", 64, "the most connections open at once")
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
	name := specs[0].Key()
	t.say("raising a lab of one host and a client; pando up")
	s, err := raise(ctx, p.binary)
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
	t.say("pando rm website: its last state is merged")
	if _, err := s.do(ctx, "rm", string(name.Name), "--wait"); err != nil {
		return r, err
	}
	t.say("git clone of the merged state; counting")
	r.audit, err = s.auditOf(ctx, name)
	return r, err
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
	if err := s.offer(ctx, p.load, p.schedule, t.loaded); err != nil {
		return err
	}
	t.say("the load is over; the copies leave")
	err := s.until(ctx, name, "the copies leave", settleWait, func(now pando.ServiceStatus) bool {
		st = now
		return len(st.Instances) == st.Scale.Min && st.InRotation == st.Scale.Min
	})
	end()
	watching.Wait()
	t.count(st) // the status that the demo waited for is the last one that counts
	t.explain(ctx, s, name)
	return err
}
