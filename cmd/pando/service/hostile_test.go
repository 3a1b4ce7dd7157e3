package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// pages are all pages that show an answer of the cluster.
var pages = map[string]func(dice *rand.Rand, w io.Writer){
	"services": func(d *rand.Rand, w io.Writer) { services(w, consoletest.Random[[]pando.ServiceStatus](d)) },
	"one line": func(d *rand.Rand, w io.Writer) { oneLine(w, consoletest.Random[pando.ServiceStatus](d)) },
	"instances": func(d *rand.Rand, w io.Writer) {
		instances(w, consoletest.Random[[]pando.ServiceStatus](d), consoletest.Noon)
	},
	"service": func(d *rand.Rand, w io.Writer) {
		whole(w, consoletest.Random[pando.ServiceStatus](d), consoletest.Noon)
	},
	"commits": func(d *rand.Rand, w io.Writer) { commits(w, consoletest.Random[[]pando.StateCommit](d)) },
	"intent": func(d *rand.Rand, w io.Writer) {
		i := consoletest.Random[pando.Intent](d)
		because(w, pando.Because{Intent: &i})
	},
	"decision": func(d *rand.Rand, w io.Writer) {
		v := consoletest.Random[pando.Decision](d)
		because(w, pando.Because{Decision: &v})
	},
	"history": func(d *rand.Rand, w io.Writer) { history(w, versions(consoletest.Random[[]pando.Revision](d))) },
	"diff": func(d *rand.Rand, w io.Writer) {
		c := consoletest.Random[comparison](d)
		c.Service = pando.DefaultService("web")
		c.print(w)
	},
	"stats": func(d *rand.Rand, w io.Writer) {
		stats(w, rates(consoletest.Random[[]pando.InstanceUsage](d), consoletest.Random[[]pando.InstanceUsage](d)), consoletest.Noon)
	},
}

// An instance, a member and a registry choose texts that operators read. No page lets such a text
// command the consoletest.Terminal, add a line of its own at the left, or end the command.
func TestNoAnswerCommandsTheTerminal(t *testing.T) {
	for name, page := range pages {
		for seed := range uint64(300) {
			var out bytes.Buffer
			page(rand.New(rand.NewPCG(seed, 11)), &out)
			consoletest.CheckHarmless(t, fmt.Sprint(name, ", seed ", seed), out.String())
			if t.Failed() {
				break
			}
		}
	}
}

// The same holds for the lines of `pando watch`, with any value of a record.
func TestNoEventCommandsTheTerminal(t *testing.T) {
	kinds := map[pando.Kind]func(*rand.Rand) any{
		pando.KindService:  func(d *rand.Rand) any { return consoletest.Random[pando.Service](d) },
		pando.KindRevision: func(d *rand.Rand) any { return consoletest.Random[pando.Revision](d) },
		pando.KindInstance: func(d *rand.Rand) any { return consoletest.Random[pando.Instance](d) },
		pando.KindIntent:   func(d *rand.Rand) any { return consoletest.Random[pando.Intent](d) },
		pando.KindDecision: func(d *rand.Rand) any { return consoletest.Random[pando.Decision](d) },
		pando.KindHost:     func(d *rand.Rand) any { return consoletest.Random[pando.Host](d) },
		pando.KindHead:     func(*rand.Rand) any { return "no object" },
		pando.KindBookmark: func(*rand.Rand) any { return nil },
		"\x1b[2J":          func(*rand.Rand) any { return 5 },
	}
	for kind, value := range kinds {
		for seed := range uint64(100) {
			dice := rand.New(rand.NewPCG(seed, 12))
			text, err := json.Marshal(value(dice))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			o := console.Open(&cli.Output{Env: cli.Env{Stdout: &out, Getenv: os.Getenv}})
			e := api.Event{Kind: kind, Key: pando.Key(consoletest.Evil[dice.IntN(len(consoletest.Evil))]), Value: text,
				Deleted: dice.IntN(2) == 0}
			if err := printEvent(o, e); err != nil {
				t.Fatal(err)
			}
			consoletest.CheckHarmless(t, fmt.Sprint(kind, ", seed ", seed), out.String())
			if n := strings.Count(out.String(), "\n"); n != 1 {
				t.Errorf("%s, seed %d: an event has %d lines: %q", kind, seed, n, out.String())
			}
		}
	}
}

// The processors in use come from two readings. They are unknown, and never wrong, for an instance
// that is new, was missing, or was read twice at one time.
func TestRatesAreKnownForTwoReadingsOfOneInstanceOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) pando.InstanceUsage {
			u := pando.InstanceUsage{
				Instance:   pando.InstanceID(rapid.SampledFrom([]string{"a", "b"}).Draw(t, label)),
				At:         consoletest.Noon.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "at")) * time.Second),
				CPUSeconds: rapid.Float64Range(0, 100).Draw(t, "cpu"), PIDs: new(int64(1)),
			}
			if rapid.IntRange(0, 3).Draw(t, "missing") == 0 {
				u.Missing = "it is gone"
			}
			return u
		}
		old, now := draw("before"), draw("after")
		got := rates([]pando.InstanceUsage{old}, []pando.InstanceUsage{now})
		known := old.Instance == now.Instance && old.Missing == "" && now.Missing == "" &&
			now.At.After(old.At)
		if len(got) != 1 || (got[0].CPUs != nil) != known {
			t.Fatalf("%+v after %+v: the rate is known: %v, want %v", now, old, !known, known)
		}
		if !known {
			return
		}
		want := (now.CPUSeconds - old.CPUSeconds) / now.At.Sub(old.At).Seconds()
		if *got[0].CPUs != max(0, want) { // a counter that began again has no rate below zero
			t.Fatalf("%+v after %+v: %g processors, want %g", now, old, *got[0].CPUs, want)
		}
	})
}

// A row without a time of birth has no age of three centuries.
func TestAnUnknownBirthHasNoAge(t *testing.T) {
	var out bytes.Buffer
	all := []pando.InstanceUsage{{Instance: "web-1", Host: "h1", Missing: "its host is away"}}
	stats(&out, rates(nil, all), consoletest.Noon)
	if strings.Contains(out.String(), "d  its host") || !strings.Contains(out.String(), "-") {
		t.Errorf("got\n%s", out.String())
	}
}
