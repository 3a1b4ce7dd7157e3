package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// Step is one line of a scenario: at a time after its begin, one thing happens to the lab.
//
//	2s      cut host1 host2
//	2.5s    slow host3 10mbit
//	3s      loss host3 5%
//	4s      pause host2
//	6s      resume host2
//	6s      kill host3
//	8s      boot host3
//	10s     heal                # or: heal host1 host2
type Step struct {
	At    time.Duration
	Verb  string
	Hosts []string
	Share float64 // of loss, 0 to 1
	Rate  uint64  // of slow, bits per second
}

// verbs maps each verb to its number of hosts: the least, the most, and whether an amount follows.
var verbs = map[string]struct {
	least, most int
	amount      bool
}{
	"cut": {2, 2, false}, "slow": {1, 1, true}, "loss": {1, 1, true}, "heal": {0, 100, false},
	"pause": {1, 1, false}, "resume": {1, 1, false}, "kill": {1, 1, false}, "boot": {1, 1, false},
}

// ReadScenario reads the steps of a scenario, a line each, in the order of their times. A text
// behind # is a comment. An error names its line.
func ReadScenario(r io.Reader) ([]Step, error) {
	var out []Step
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		at, err := span.Parse(words[0])
		if err != nil || at < 0 {
			return nil, fmt.Errorf("line %d: %q is no time after the begin; write it like 2s or 1.5s",
				n, words[0])
		}
		step, err := parseStep(words[1:])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		step.At = at
		if len(out) > 0 && at < out[len(out)-1].At {
			return nil, fmt.Errorf("line %d: %s comes before the line above; order the lines by time", n, at)
		}
		out = append(out, step)
		if len(out) > stepsMax {
			return nil, fmt.Errorf("line %d: a scenario has at most %d steps", n, stepsMax)
		}
	}
	return out, lines.Err()
}

const stepsMax = 10_000

// parseStep reads the words behind the time.
func parseStep(words []string) (Step, error) {
	if len(words) == 0 {
		return Step{}, errors.New("a time without a verb; write one of " + verbList())
	}
	s := Step{Verb: words[0]}
	form, ok := verbs[s.Verb]
	if !ok {
		return s, fmt.Errorf("unknown verb %q; write one of %s", s.Verb, verbList())
	}
	s.Hosts = words[1:]
	if form.amount && len(words) == 3 {
		s.Hosts = words[1:2]
		var err error
		if s.Verb == "loss" {
			s.Share, err = ParseShare(words[2])
		} else {
			s.Rate, err = ParseRate(words[2])
		}
		if err != nil {
			return s, err
		}
	} else if form.amount {
		return s, fmt.Errorf("%s wants a host and an amount, like `slow host1 10mbit`, `loss host1 5%%`",
			s.Verb)
	}
	if len(s.Hosts) < form.least || len(s.Hosts) > form.most {
		return s, fmt.Errorf("%s wants %d host(s), got %d", s.Verb, form.least, len(s.Hosts))
	}
	return s, nil
}

func verbList() string {
	var out []string
	for v := range verbs {
		out = append(out, v)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// fault returns the fault that the step puts in force.
func (s Step) fault() Fault {
	f := Fault{Kind: s.Verb, Share: s.Share, Rate: s.Rate}
	if len(s.Hosts) > 0 {
		f.Host = s.Hosts[0]
	}
	if len(s.Hosts) > 1 {
		f.Peer = s.Hosts[1]
	}
	return f
}

// String returns the step as a line of a scenario.
func (s Step) String() string {
	words := append([]string{s.At.String(), s.Verb}, s.Hosts...)
	switch s.Verb {
	case "loss":
		words = append(words, fmt.Sprintf("%g%%", s.Share*100))
	case "slow":
		words = append(words, rateText(s.Rate))
	}
	return strings.Join(words, " ")
}

// ParseShare reads a share like 5% or 0.05.
func ParseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	f, err := strconv.ParseFloat(number, 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f > 0 && f <= 1) {
		return 0, fmt.Errorf("%q is no share of frames; write it like 5%%", text)
	}
	return f, nil
}

// rateUnits are the units of a rate, as tc names them, in bits per second.
var rateUnits = []struct {
	name string
	bits uint64
}{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// ParseRate reads a rate like 10mbit into bits per second.
func ParseRate(text string) (uint64, error) {
	for _, u := range rateUnits {
		number, ok := strings.CutSuffix(strings.ToLower(text), u.name)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(number, 64)
		if err != nil || !(f > 0) || f*float64(u.bits) > 1e12 {
			break
		}
		return uint64(f * float64(u.bits)), nil
	}
	return 0, fmt.Errorf("%q is no rate; write it like 10mbit, 500kbit or 1gbit", text)
}

func rateText(bits uint64) string {
	for _, u := range rateUnits {
		if bits >= u.bits {
			return strconv.FormatFloat(float64(bits)/float64(u.bits), 'g', -1, 64) + u.name
		}
	}
	return "0bit"
}

// Do performs one step.
func (l *Lab) Do(ctx context.Context, s Step) error {
	switch s.Verb {
	case "cut":
		return l.Cut(s.Hosts[0], s.Hosts[1])
	case "slow":
		return l.Slow(s.Hosts[0], s.Rate)
	case "loss":
		return l.Lose(s.Hosts[0], s.Share)
	case "heal":
		return l.Heal(s.Hosts...)
	case "pause":
		return l.Pause(s.Hosts[0])
	case "resume":
		return l.Resume(s.Hosts[0])
	case "kill":
		return l.Kill(s.Hosts[0])
	case "boot":
		return l.Boot(ctx, s.Hosts[0])
	}
	return fmt.Errorf("unknown verb %q; write one of %s", s.Verb, verbList())
}

// Play calls do, usually Lab.Do, with each step of a scenario at its time. It ends at the first
// error.
func Play(ctx context.Context, clock pando.Clock, steps []Step,
	do func(context.Context, Step) error) error {
	begin := clock.Now()
	for _, s := range steps {
		if err := pando.Sleep(ctx, clock, s.At-clock.Now().Sub(begin)); err != nil {
			return err
		}
		if err := do(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// Chaos draws a scenario: n faults, one after another, each healed before the next. The same seed
// gives the same scenario. Every killed host is booted again, and the last step heals all.
func Chaos(seed uint64, hosts []string, n int, gap time.Duration) []Step {
	dice := rand.New(rand.NewPCG(seed, uint64(len(hosts))))
	var out []Step
	at := gap
	for range n {
		a, b := hosts[dice.IntN(len(hosts))], hosts[dice.IntN(len(hosts))]
		hurt, heal := Step{Hosts: []string{a}}, Step{Verb: "heal"}
		switch kind := dice.IntN(5); {
		case kind == 0 && a != b:
			hurt.Verb, hurt.Hosts = "cut", []string{a, b}
		case kind == 1:
			hurt.Verb, hurt.Rate = "slow", uint64(1+dice.IntN(100))*1e6
		case kind == 2:
			hurt.Verb, heal = "kill", Step{Verb: "boot", Hosts: []string{a}}
		case kind == 3:
			hurt.Verb, heal = "pause", Step{Verb: "resume", Hosts: []string{a}}
		default:
			hurt.Verb, hurt.Share = "loss", float64(1+dice.IntN(20))/100
		}
		hurt.At, heal.At = at, at+gap
		out = append(out, hurt, heal)
		at += 2 * gap
	}
	return append(out, Step{At: at, Verb: "heal"})
}
