package operator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func TestWhySaysEachReasonOnce(t *testing.T) {
	i := pando.Intent{
		Service: pando.DefaultService("web"), Verb: pando.VerbReplicate,
		By: pando.Asker{Kind: pando.AskerInstance, Name: "web-a"}, Instance: "web-b",
		Inputs: map[string]float64{"req/s": 812, "limit": 600},
	}.Become(pando.IntentAsked, noon, "busy").Become(pando.IntentGranted, noon,
		"2 of 4").Become(pando.IntentPlaced, noon, "on h1").
		Become(pando.IntentStarting, noon.Add(3*time.Millisecond), "on h1").Become(pando.IntentReady,
		noon.Add(1500*time.Millisecond), "after 1.5s")
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
		Reason: "it exited with 3", Lines: []string{"no db"}, At: noon}})
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
			o := Open(&cli.Output{Env: cli.Env{Stdout: &b, Getenv: os.Getenv}})
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

func TestAHostWithoutANetworkHasNoAddress(t *testing.T) {
	given := netip.MustParseAddr("10.126.0.1")
	for a, want := range map[netip.Addr]string{{}: "-", given: "10.126.0.1"} {
		if got := hostAddress(a); got != want {
			t.Errorf("%v is shown as %q, want %q", a, got, want)
		}
	}
}

func TestBriefShowsTheTwoFiguresThatMatter(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "-1s", 0: "0s", 123456: "120µs", 12345678: "12ms",
		5292300 * time.Microsecond: "5.3s", 83*time.Second + 1: "1m23s",
		3*time.Hour + 25*time.Minute + 40*time.Second: "3h26m", 100 * time.Hour: "4d",
	} {
		if got := brief(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
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
		whole(&b, st, noon)
		if got := placeOf(spec); got != want || want != "" && !strings.Contains(b.String(), want) {
			t.Errorf("got %q, want %q in\n%s", got, want, b.String())
		}
	}
	if got := placeOf(nil); got != "" {
		t.Errorf("of no spec: %q", got)
	}
}

func TestHostsShowsLabels(t *testing.T) {
	var b bytes.Buffer
	hosts(&b, []pando.HostStatus{
		{Host: pando.Host{Name: "h1", Labels: "disk=ssd zone=a"}}, {Host: pando.Host{Name: "h2"}},
	}, noon)
	for _, want := range []string{"LABELS", "disk=ssd zone=a"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("want %q in\n%s", want, b.String())
		}
	}
}

// The list of services and a history name what instances wait for.
func TestWhatInstancesWaitForIsNamed(t *testing.T) {
	of := func(id pando.InstanceID, p pando.Phase, reason, waits string) pando.InstanceStatus {
		return pando.InstanceStatus{Instance: pando.Instance{ID: id, Host: "h1", Phase: p,
			Reason: reason, Waits: waits}}
	}
	run := of("job-1", pando.PhaseStarting, "the program runs", "")
	run.Run = &pando.RunPart{Number: 1}
	var b bytes.Buffer
	waiting(&b, []pando.ServiceStatus{{Instances: []pando.InstanceStatus{
		of("web-1", pando.PhasePlaced, "its image is on the way: r/a; it waits for registry r", ""),
		of("web-2", pando.PhaseInRotation, "steered to on this host", ""),
		of("web-3", pando.PhaseDraining, "more than wanted", "waits for 1 connection"), run,
	}}})
	const want = "web-1 on h1 is placed: its image is on the way: r/a; it waits for registry r\n" +
		"web-3 on h1 is draining: waits for 1 connection\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Every command that shows services names what stands in the way on the hosts, each thing once.
func TestTroublesAreNamed(t *testing.T) {
	var b bytes.Buffer
	here := func(name pando.HostName, l *pando.Losses) pando.HostStatus {
		return pando.HostStatus{Host: pando.Host{Name: name}, State: pando.HostHere, Losses: l}
	}
	gone := here("h5", nil)
	gone.State, gone.Heard, gone.ServerSilent = pando.HostAway, noon, true
	odd := here("h6", nil)
	odd.Unread = "read the map drops: permission denied"
	troubles(&b, []pando.HostStatus{
		here("h1", &pando.Losses{Dead: "h4", Cut: "h2"}), here("h2", &pando.Losses{Cut: "h1"}),
		here("h3", &pando.Losses{Silent: "web-1 (it is stopped)", Resolvers: "192.0.2.1:53 (asked 2s ago)"}),
		here("h4", nil), gone, odd,
	})
	const want = "the agent of h4 does not answer the server\nh5 is away since 12:00:00Z\n" +
		"the server of h5 does not answer the one that was asked\n" +
		"h6 cannot say what its steering lost: read the map drops: permission denied\n" +
		"h4 answers no probe of h1: it gets no new connections from there\n" +
		"between h1 and h2 no packet comes through, and both live: they send each other no new " +
		"connections\n" +
		"h3 asks again, for these programs run without a shim that answers: web-1 (it is stopped)\n" +
		"name servers do not answer h3: 192.0.2.1:53 (asked 2s ago)\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
