// Package function is the demo of network functions. It sends a capture through a policer and an
// IDS, which run in a group of units that grows and shrinks with the load. It kills one unit in the
// middle. At the end it accounts for every packet, every alert and the bill.
//
// The demo makes no decision for the units: it plays, kills and counts.
package function

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/demo/report"
	"pando.run/pando/demo/screen"
	"pando.run/pando/driver/clock"
)

// play holds the arguments of the demo.
type play struct {
	binary, report, functions string
	capture, rules            string // empty: the demo makes its own
	flows, copies             int
	seconds, speed            float64
	plain, made               bool
}

// name is the name of the group and tenant its tenant. units bounds the number of units, capacity
// the bits per second of each.
const name, tenant, units, capacity = "demo", "acme", "1..4", "40M"

// settleWait is how long packets may be in flight after the last one was sent.
const settleWait = 15 * time.Second

// shrinkWait is how long the demo waits for unneeded units to leave. A group keeps an idle unit for
// 10 seconds.
const shrinkWait = 20 * time.Second

// look is the interval at which the demo reads the state of the units.
const look = 100 * time.Millisecond

// Demo runs the demo.
func Demo(ctx context.Context, args []string) error {
	var p play
	flags := flag.NewFlagSet("pando-demo fn", flag.ContinueOnError)
	flags.StringVar(&p.binary, "pando", "bin/pando", "the pando `binary`")
	flags.StringVar(&p.functions, "functions", "function/functions",
		"`folder` of the policer and the IDS")
	flags.StringVar(&p.report, "report", "demo-fn.html", "`file` for the report")
	flags.StringVar(&p.capture, "capture", "", "`file` to play, pcap or pcapng (default: one is made)")
	flags.StringVar(&p.rules, "rules", "",
		"`file` of Snort rules for the IDS (default: one rule of the demo's own)")
	flags.IntVar(&p.flows, "flows", 4000, "flows of the capture that is made")
	flags.Float64Var(&p.seconds, "seconds", 20, "seconds in which they begin")
	flags.IntVar(&p.copies, "copies", 2, "copies that are played at once")
	flags.Float64Var(&p.speed, "speed", 0, "how much faster it is played than it was captured "+
		"(default: 1, and 20 for a capture that is given)")
	flags.BoolVar(&p.plain, "plain", false, "plain lines, also on a terminal")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("the demo makes network namespaces and packet sockets: run it as root")
	}
	if err := report.Possible(p.report); err != nil {
		return err
	}
	t := newTimeline()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	end := screen.Show(ctx, stop, t, p.plain || !screen.Terminal(os.Stdout))
	r, err := p.run(ctx, t)
	end()
	if err != nil {
		return err
	}
	return report.Conclude(os.Stdout, p.report, r.page(p, t))
}

// run plays the demo. It leaves the machine as it was.
func (p *play) run(ctx context.Context, t *timeline) (r result, err error) {
	t.say("raising three network namespaces in a row: a sender, the units, a receiver")
	s, err := raise(ctx, p.binary)
	if err != nil {
		return r, screen.Ended(ctx, err)
	}
	defer func() { err = errors.Join(screen.Ended(ctx, err), s.lower()) }()
	if err := p.provide(ctx, t, s); err != nil {
		return r, err
	}
	t.say("pando fn run policer.wasm ids.wasm --units " + units + " --unit-capacity " + capacity)
	watcher, err := s.start("unit", append(append([]string{"run"}, p.chain()...), append(s.places(),
		"--name", name, "--tenant", tenant, "--iface", "in", "--out", "out", "--units", units,
		"--unit-capacity", capacity)...)...)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(screen.Ended(ctx, err), s.remove(watcher)) }()
	if err := t.ready(ctx, s, watcher); err != nil {
		return r, err
	}
	if err := p.through(ctx, t, s); err != nil {
		return r, err
	}
	t.say("counting: the bill, the alerts, and what a run without network and kill says of the " +
		"packets that came out")
	return p.count(ctx, t, s)
}

// remove ends the units in order and waits for the process that runs the group.
func (s *stage) remove(watcher *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), lowerWait)
	defer cancel()
	_, err := s.unit(ctx, "rm", name)
	watcher.end()
	_ = watcher.cmd.Wait() // rm has reported the result already
	return err
}

// provide makes the capture and the rules unless the arguments name files.
func (p *play) provide(ctx context.Context, t *timeline, s *stage) error {
	if p.rules == "" {
		p.rules = s.dir.File(ownFile)
		if err := os.WriteFile(p.rules, []byte(ownRules), 0o644); err != nil {
			return fmt.Errorf("write the rules: %w", err)
		}
	}
	if p.capture != "" {
		if _, err := os.Stat(p.capture); err != nil {
			return fmt.Errorf("find the capture: %w", err)
		}
		p.speed = cmp.Or(p.speed, 20)
		return nil
	}
	p.speed = cmp.Or(p.speed, 1)
	t.say("pando fn generate: a capture of flows with a heavy tail and a burst in the middle")
	p.capture, p.made = s.dir.File("made.pcap"), true
	out, err := s.fn(ctx, "in", "generate", p.capture, "--flows", fmt.Sprint(p.flows), "--seconds",
		fmt.Sprint(p.seconds), "--content", ownContent, "-o", "json")
	if err != nil {
		return err
	}
	var c capture
	if err := json.Unmarshal(out, &c); err != nil {
		return fmt.Errorf("read pando fn generate: %w", err)
	}
	t.event("demo", "made a capture", fmt.Sprintf("%d flows, %d packets", c.Flows, c.Packets),
		"the same bytes each time")
	return nil
}

// ownContent is the content that the demo's own rule finds in the demo's own capture.
const (
	ownFile    = "demo.rules"
	ownContent = "GET /cgi-bin/pando-demo-attack"
	ownRules   = `alert ip any any -> any any (msg:"the demo's attack"; content:"` + ownContent +
		`"; sid:1000001;)` + "\n"
)

// chain returns the functions and their settings. The policer passes every packet, so that only the
// kill loses packets.
func (p play) chain() []string {
	return []string{
		filepath.Join(p.functions, "policer", "policer.wasm"),
		filepath.Join(p.functions, "ids", "ids.wasm"),
		"--set", "policer.rate=1000000000", "--set", "policer.burst=1000000000", "--rules", p.rules,
	}
}

// through plays the capture, kills a unit half-way, and waits until all packets in flight have
// arrived.
func (p play) through(ctx context.Context, t *timeline, s *stage) (err error) {
	receiver, err := s.start("out", "receive", "--iface", "eth0", "--interval-ms", "100", "-o", "json",
		"--write", s.dir.File("out.pcap"))
	if err != nil {
		return err
	}
	top, err := s.start("unit", append([]string{"top", "--interval-ms",
		fmt.Sprint(look.Milliseconds()), "-o", "json"}, s.places()...)...)
	if err != nil {
		return errors.Join(err, stopped(receiver))
	}
	var reading sync.WaitGroup
	problems := make([]error, 2)
	reading.Go(func() { problems[0] = each(receiver, t.came) })
	reading.Go(func() { problems[1] = each(top, t.saw) })
	defer func() {
		top.end()
		receiver.end()
		reading.Wait()
		_ = top.cmd.Wait() // the demo ended it
		err = errors.Join(err, receiver.wait(), problems[0], problems[1])
	}()
	if err := t.until(ctx, "the receiver to be ready", settleWait, func() bool {
		return len(t.arrived) > 0
	}); err != nil {
		return err
	}
	if err := p.replay(ctx, t, s); err != nil {
		return err
	}
	t.say("the capture was sent; waiting for packets under way")
	if err := t.settle(ctx); err != nil {
		return err
	}
	t.say("units that are idle for 10 seconds leave")
	return t.shrink(ctx)
}

func stopped(p *process) error {
	p.end()
	return p.wait()
}

// replay sends the capture and kills a unit half-way.
func (p play) replay(ctx context.Context, t *timeline, s *stage) error {
	t.say(fmt.Sprintf("pando fn replay --speed %g --copies %d: each copy has flows of its own",
		p.speed, p.copies))
	generator, err := s.start("in", "replay", p.capture, "--iface", "eth0", "--speed",
		fmt.Sprint(p.speed), "--copies", fmt.Sprint(p.copies),
		"--stamp", "--interval-ms", "100", "-o", "json")
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, generator.end)()
	half, over := make(chan struct{}), make(chan struct{})
	var killing sync.WaitGroup
	var unkilled error
	killing.Go(func() {
		select {
		case <-over:
		case <-half:
			unkilled = t.kill(ctx, s)
		}
	})
	reached := false
	err = each(generator, func(r sent) {
		t.sent(r)
		if r.Packets*2 >= r.Planned && !reached {
			reached = true
			close(half)
		}
	})
	if !reached { // the replay failed
		close(over)
	}
	killing.Wait()
	return errors.Join(err, generator.wait(), unkilled, ctx.Err())
}

// until waits until seen returns true.
func (t *timeline) until(
	ctx context.Context, what string, within time.Duration, seen func() bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		t.mu.Lock()
		done := seen()
		t.mu.Unlock()
		if done {
			return nil
		}
		if err := pando.Sleep(ctx, clock.Clock{}, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s: %w within %s", what, pando.ErrNotReady, within)
		}
	}
}
