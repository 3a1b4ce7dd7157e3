package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func TestWhySaysEachReasonOnce(t *testing.T) {
	i := pando.Intent{
		Service: pando.DefaultService("web"), Verb: pando.VerbReplicate,
		By: pando.Asker{Kind: pando.AskerInstance, Name: "web-a"}, Instance: "web-b",
		Inputs: map[string]float64{"req/s": 812, "limit": 600},
	}.Become(pando.IntentAsked, consoletest.Noon, "busy").Become(pando.IntentGranted, consoletest.Noon,
		"2 of 4").Become(pando.IntentPlaced, consoletest.Noon, "on h1").
		Become(pando.IntentStarting, consoletest.Noon.Add(3*time.Millisecond), "on h1").Become(pando.IntentReady,
		consoletest.Noon.Add(1500*time.Millisecond), "after 1.5s")
	var b bytes.Buffer
	because(&b, pando.Because{Intent: &i})
	_, got, _ := strings.Cut(b.String(), "  ")
	want := "replicate  instance web-a → web-b: busy  [limit 600, req/s 812]\n" +
		indent + "granted +0s (2 of 4) → placed +0s (on h1) → starting +3ms → ready +1.5s (after 1.5s)\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	b.Reset()
	because(&b, pando.Because{Decision: &pando.Decision{Kind: pando.DecidedFailed, Instance: "web-b",
		Reason: "it exited with 3", Lines: []string{"no db"}, At: consoletest.Noon}})
	_, got, _ = strings.Cut(b.String(), "  ")
	if got != "failed     web-b: it exited with 3\n"+indent+"| no db\n" {
		t.Errorf("got\n%s", got)
	}
}

func TestWatchTellsWhatChangedInWords(t *testing.T) {
	web := pando.DefaultService("web")
	for want, v := range map[string]pando.Stored{
		"service   web                  rolling (1 of 2), revision 3": pando.Service{
			ServiceKey: web, Phase: "rolling", Reason: "1 of 2", Target: 3,
		},
		"service   web                  deploying, revision 1": pando.Service{
			ServiceKey: web, Phase: "deploying", Target: 1,
		},
		"revision  web                  revision 3 is failed (it exits)": pando.Revision{
			Service: web, Number: 3, State: "failed", Reason: "it exits",
		},
		"instance  web-a                ready (after 3ms)": pando.Instance{
			Service: web, ID: "web-a", Host: "h1", Phase: "ready", Reason: "after 3ms",
		},
		"intent    web-a                halt by operator anna: refused (min is 1)": pando.Intent{
			Service: web, Instance: "web-a", Verb: "halt", By: pando.Asker{Kind: "operator", Name: "anna"},
			State: "refused", Reason: "min is 1",
		},
		"decision  web                  pin by operator: 3 instances": pando.Decision{Service: web,
			Kind: "pin", By: pando.Asker{Kind: "operator"}, Reason: "3 instances"},
		"host      h1                   joined":                 pando.Host{Name: "h1"},
		"head      web                  state is at 0000000000": pando.StateHead{Service: web},
	} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, deleted := range []bool{false, true} {
			var b bytes.Buffer
			o := console.Open(&cli.Output{Env: cli.Env{Stdout: &b, Getenv: os.Getenv}})
			e := api.Event{Kind: v.Key().Kind(), Key: v.Key(), Value: text, Deleted: deleted}
			if deleted {
				e.Value = nil
			}
			if err := printEvent(o, e); err != nil {
				t.Fatal(err)
			}
			_, got, _ := strings.Cut(strings.TrimSpace(b.String()), "  ")
			if !deleted && got != want || deleted && !strings.HasSuffix(got, " gone") {
				t.Errorf("got  %q\nwant %q (deleted: %v)", got, want, deleted)
			}
		}
	}
}

func TestPendingPrintsALinePerHost(t *testing.T) {
	var b bytes.Buffer
	fits(&b, []pando.HostFit{
		{Host: "h1", Instances: 2, Reason: "it leaves"},
		{Host: "h2", Next: true, Takes: true, Reason: "on h2, the least loaded host"},
		{Host: "h3", Takes: true, Reason: "it has room; h2 comes first"},
	})
	var got [][]string
	for l := range strings.Lines(b.String()) {
		got = append(got, strings.Fields(l)[:3])
	}
	want := "[[HOST INSTANCES NEXT] [h1 2 no] [h2 0 yes] [h3 0 later]]"
	if text := fmt.Sprint(got); text != want {
		t.Errorf("got %s, want %s:\n%s", text, want, b.String())
	}
}

func TestStatusShowsTheRuleOfPlacement(t *testing.T) {
	for want, spec := range map[string]*pando.Spec{
		"":                           {},
		"only zone=a, apart from db": {Place: pando.Place{Only: "zone=a", Apart: "db", Near: "first"}},
		"spread host":                {Place: pando.Place{Spread: "host"}},
	} {
		st := pando.ServiceStatus{Spec: spec}
		var b bytes.Buffer
		whole(&b, st, consoletest.Noon)
		if got := placeOf(spec); got != want || want != "" && !strings.Contains(b.String(), want) {
			t.Errorf("got %q, want %q in\n%s", got, want, b.String())
		}
	}
	if got := placeOf(nil); got != "" {
		t.Errorf("of no spec: %q", got)
	}
}
