package lab

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestOddScenariosAreRefusedByLine(t *testing.T) {
	for text, want := range map[string]string{
		"cut a b":  `line 1: "cut" is no time after the begin`,
		"1s":       "line 1: a time without a verb",
		"-1s heal": `"-1s" is no time`,
		"\n1s explode a": `line 2: unknown verb "explode"; write one of block, boot, ` +
			`cut, heal`,
		"1s cut a":                              "cut wants 2 host(s), got 1",
		"1s kill a b":                           "kill wants 1 host(s), got 2",
		"1s slow a":                             "slow wants a host and an amount",
		"1s slow a 10":                          `"10" is no rate; write it like 10mbit`,
		"1s slow a -1mbit":                      `"-1mbit" is no rate`,
		"1s slow a NaNmbit":                     `"NaNmbit" is no rate`,
		"1s loss a 0%":                          `"0%" is no share`,
		"1s loss a 200%":                        `"200%" is no share`,
		"2s heal\n1s kill a":                    "line 2: 1s comes before the line above",
		strings.Repeat("0s heal\n", stepsMax+1): "at most 10000 steps",
	} {
		if _, err := ReadScenario(strings.NewReader(text)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func TestChaosIsAScenarioOfItsSeed(t *testing.T) {
	hosts := []string{"a", "b", "c"}
	first := Chaos(7, hosts, 200, time.Second)
	if !reflect.DeepEqual(first, Chaos(7, hosts, 200, time.Second)) {
		t.Error("one seed gives two scenarios")
	}
	if reflect.DeepEqual(first, Chaos(8, hosts, 200, time.Second)) {
		t.Error("two seeds give one scenario")
	}
	down := map[string]bool{}
	seen := map[string]bool{}
	for _, s := range first {
		seen[s.Verb] = true
		switch s.Verb {
		case "kill":
			down[s.Hosts[0]] = true
		case "boot":
			delete(down, s.Hosts[0])
		}
	}
	if len(down) > 0 {
		t.Errorf("killed and never booted: %v", down)
	}
	for _, verb := range []string{"cut", "slow", "loss", "pause", "resume", "kill", "boot", "heal"} {
		if !seen[verb] {
			t.Errorf("200 faults have no %q", verb)
		}
	}
}

// A scenario that is written and read again is the same.
func FuzzScenarioLines(f *testing.F) {
	for _, s := range Chaos(1, []string{"host1", "host2"}, 30, 700*time.Millisecond) {
		f.Add(s.String())
	}
	f.Add("1s loss a 33.3%")
	f.Fuzz(func(t *testing.T, text string) {
		steps, err := ReadScenario(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, s := range steps {
			again, err := ReadScenario(strings.NewReader(s.String()))
			if err != nil || len(again) != 1 || again[0].String() != s.String() {
				t.Fatalf("%q is written as %q and read as %v, %v", text, s, again, err)
			}
		}
	})
}
