package service

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func TestTopShowsScoresAndRates(t *testing.T) {
	one := func(i pando.InstanceID, at time.Time, flows uint64) pando.InstanceUsage {
		return pando.InstanceUsage{Instance: i, Host: "host1", Phase: pando.PhaseInRotation, At: at,
			Flows: flows, Connections: 7, PIDs: new(int64(1))}
	}
	later := consoletest.Noon.Add(2 * time.Second)
	before := []pando.InstanceUsage{one("web-a", consoletest.Noon, 100), one("web-b", consoletest.Noon, 900)}
	now := []pando.InstanceUsage{
		one("web-a", later, 300), one("web-b", later, 5), one("web-c", later, 1),
		{Instance: "web-d", Host: "host2", Phase: pando.PhaseReady, Missing: "no answer"}}
	now[0].CPUSeconds = 1
	now[0].Meter = &pando.Meter{CPU: 0.5, Memory: 0.25, Pressure: 0.125, Loss: 0.0125,
		RTTSeconds: 0.00034}
	before[0].Queue = &pando.LinkQueue{Drops: 2}
	now[0].Queue = &pando.LinkQueue{BacklogBytes: 8840, Drops: 42}
	now[1].Queue = &pando.LinkQueue{Drops: 42}
	now[0].Score = &pando.Score{Value: 0.328}
	now[1].Meter, now[1].Score = &pando.Meter{CPU: 1}, &pando.Score{Value: 1.5, Excluded: true}
	v := topView{Balance: pando.Balance{By: pando.ByScore},
		Scale:     pando.Scale{By: pando.ByScores, Up: 0.6, Down: 0.1},
		Instances: topRows(before, now, map[pando.InstanceID]int{"web-a": 100, "web-b": 25}),
		Decisions: []pando.Because{{Decision: &pando.Decision{At: consoletest.Noon, Kind: pando.DecidedFailed,
			Reason: "it ended"}}}}
	var b bytes.Buffer
	top(&b, v)
	got := consoletest.Squeeze(b.String())
	for _, want := range []string{
		"balance by score, scale by score (up 0.6, down 0.1)",
		"web-a host1 in rotation 100 0.328 0.50 50% 25% 12% 1.2% 0.34ms 8.6K, 40 dropped 7 100",
		"web-b host1 in rotation 25 1.500* 0.00 100% 0% 0% - - 0B 7 -", // its counters began anew
		"web-c host1 in rotation 0 - - - - - - - - 7 -",
		"web-d host2 ready - - - - - - - - - - no answer",
		"it ended",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
}

// A live page has one line for each decision, without its steps and inputs.
func TestTopShowsDecisionsBriefly(t *testing.T) {
	i := pando.Intent{Verb: pando.VerbReplicate, Instance: "web-c",
		By: pando.Asker{Kind: "scaler"}, Inputs: map[string]float64{"score": 1.08},
		History: []pando.Transition{
			{State: pando.IntentAsked, At: consoletest.Noon, Reason: "the best score is 1.08"},
			{State: pando.IntentGranted, At: consoletest.Noon, Reason: "3 of max 6 instances"},
			{State: pando.IntentPlaced, At: consoletest.Noon, Reason: "on host1"},
		}}
	d := pando.Decision{At: consoletest.Noon, Kind: pando.DecidedFailed, Reason: "it ended",
		Lines: []string{"panic: no memory"}}
	var b bytes.Buffer
	top(&b, topView{Decisions: []pando.Because{{Intent: &i}, {Decision: &d}}})
	_, got, _ := strings.Cut(consoletest.Squeeze(b.String()), "NEW/S")
	if lines := strings.Count(strings.TrimSpace(got), "\n"); lines != 1 ||
		!strings.Contains(got, "scaler → web-c, placed: the best score is 1.08") ||
		!strings.Contains(got, "it ended") {
		t.Errorf("two decisions are\n%s", got)
	}
}

func TestTopNamesTheScaler(t *testing.T) {
	for want, s := range map[string]pando.Scale{
		"its application":                    {},
		"connections_per_second (target 50)": {By: pando.ByConnections, Target: 50},
		"queue_depth (target 10)":            {By: "queue_depth", Target: 10},
	} {
		if got := scaledBy(s); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}
