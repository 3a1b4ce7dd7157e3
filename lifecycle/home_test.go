package lifecycle

import (
	"strings"
	"testing"

	"pando.run/pando"
)

func TestAStateBindsAServiceToItsHome(t *testing.T) {
	for _, c := range []struct {
		name string
		tie  Tie
		want pando.HostName
	}{
		{"never placed", Tie{}, ""},
		{"at home", Tie{Home: "a", Takes: true}, "a"},
		{"its home is away: it may move", Tie{Home: "a"}, ""},
		{"its spec has a state: it waits", Tie{Home: "a", State: true}, "a"},
		{"a pushed state is elsewhere", Tie{Home: "a", Takes: true, Pushed: true, Head: "b"}, "b"},
		{"placed before homes existed", Tie{Oldest: "c"}, "c"},
		{"its home breaks the rule, with instances",
			Tie{Home: "a", Takes: true, Breaks: true, Runs: true}, "a"},
		{"its home breaks the rule, without one", Tie{Home: "a", Takes: true, Breaks: true}, ""},
		{"its home breaks the rule and is away", Tie{Home: "a", Breaks: true, Runs: true}, ""},
		{"it spreads", Tie{Home: "a", Takes: true, Oldest: "c", Spread: true}, ""},
		{"it spreads, with a state in its spec", Tie{Home: "a", State: true, Spread: true}, "a"},
		{"it spreads, and has pushed a state", Tie{Pushed: true, Head: "b", Spread: true}, "b"},
		{"a home is stronger than old instances", Tie{Home: "a", Takes: true, Oldest: "c"}, "a"},
	} {
		if got := Home(c.tie); got != c.want {
			t.Errorf("%s: the home is %q, want %q", c.name, got, c.want)
		}
	}
}

func TestNothingStartsAwayFromTheState(t *testing.T) {
	for _, c := range []struct {
		name            string
		takers, fitting int
		home            pando.HostName
		standing        Standing
		want            string // a part of the reason; "" if an instance can start
	}{
		{"no host", 0, 0, "", Standing{}, "no host takes instances"},
		{"no host and a home", 0, 0, "a", Standing{Here: true}, "no host takes instances"},
		{"no home", 2, 2, "", Standing{}, ""},
		{"no host keeps the rule", 2, 0, "", Standing{}, "pando up --label"},
		{"the home is here", 1, 1, "a", Standing{Here: true}, ""},
		{"the home is away", 1, 1, "a", Standing{}, "a, which is away"},
		{"the home is away, and breaks the rule", 1, 1, "a", Standing{Unfit: "lacks it"},
			"a, which is away"},
		{"the home leaves", 1, 1, "a", Standing{Here: true, Leaving: true}, "a, which leaves"},
		{"the home was removed", 1, 1, "a", Standing{Removed: true}, "was removed from the cluster"},
		{"the home breaks the rule", 1, 0, "a", Standing{Here: true, Unfit: "lacks the label zone=a"},
			"a, which lacks the label zone=a"},
	} {
		got := Waits(c.takers, c.fitting, c.home, c.standing, nil)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: it waits for %q, want %q", c.name, got, c.want)
		}
		state := c.home != "" && c.takers > 0 && got != "" && c.standing.Unfit == ""
		if state && !strings.Contains(got, "pando rm --purge") {
			t.Errorf("%s: %q has no next step", c.name, got)
		}
	}
}

// A label goes with its host. So a rule that no host keeps may mean one that is away, and the reason names
// those.
func TestHostsThatAreAwayAreNamed(t *testing.T) {
	for want, away := range map[string][]pando.HostName{
		"`runtime`, and c is away: ":                            {"c"},
		"`runtime`, and c, d are away: ":                        {"c", "d"},
		"`runtime`, and c, d, e, f, g, 2 more are away: change": {"c", "d", "e", "f", "g", "h", "i"},
	} {
		if got := Waits(2, 0, "", Standing{}, away); !strings.Contains(got, want) {
			t.Errorf("%v: %q", away, got)
		}
	}
	if got := Waits(0, 0, "", Standing{}, []pando.HostName{"c"}); got != "no host takes instances, and c is away" {
		t.Error(got)
	}
}

func TestOnlyReachableInstancesAtHomeCount(t *testing.T) {
	for _, c := range []struct {
		host, home pando.HostName
		here, want bool
	}{
		{"a", "", true, true}, {"a", "a", true, true}, {"b", "a", true, false},
		{"a", "", false, false}, {"a", "a", false, false},
	} {
		if got := Counts(c.host, c.home, c.here); got != c.want {
			t.Errorf("on %s, home %q, here %t: counts %t", c.host, c.home, c.here, got)
		}
	}
}

func TestAClaimTakesTheFirstWarmInstanceOfTheRevisionAtHome(t *testing.T) {
	reserve := []pando.Instance{
		{ID: "elsewhere", Host: "b", Revision: 2, Phase: pando.PhaseWarm},
		{ID: "older", Host: "a", Revision: 1, Phase: pando.PhaseWarm},
		{ID: "starting", Host: "a", Revision: 2, Phase: pando.PhaseStarting},
		{ID: "first", Host: "a", Revision: 2, Phase: pando.PhaseWarm},
		{ID: "second", Host: "a", Revision: 2, Phase: pando.PhaseWarm},
	}
	on := func(home pando.HostName) func(pando.HostName) bool {
		return func(h pando.HostName) bool { return h == home }
	}
	none := func(pando.HostName) int { return 0 }
	if i, ok := Claim(reserve, 2, on("a"), none); !ok || i.ID != "first" {
		t.Errorf("claimed %s", i.ID)
	}
	if i, ok := Claim(reserve, 3, on("a"), none); ok {
		t.Errorf("claimed %s of another revision", i.ID)
	}
	if i, ok := Claim(reserve, 2, on(""), none); ok {
		t.Errorf("claimed %s without a home", i.ID)
	}
	fellows := func(h pando.HostName) int { return len(h) * map[pando.HostName]int{"a": 2, "b": 1}[h] }
	anywhere := func(pando.HostName) bool { return true }
	if i, ok := Claim(reserve, 2, anywhere, fellows); !ok || i.ID != "elsewhere" {
		t.Errorf("claimed %s, want the one on the host with the fewest", i.ID)
	}
}

var phases = []pando.Phase{
	pando.PhasePlaced, pando.PhaseStarting, pando.PhaseWarm, pando.PhaseReady, pando.PhaseInRotation,
	pando.PhaseDraining, pando.PhaseDrained, pando.PhaseFailed, pando.PhaseMerged,
}

// everyone returns an instance in every phase on two hosts, of two revisions.
func everyone() (out []pando.Instance) {
	for _, h := range []pando.HostName{"a", "b"} {
		for revision := 1; revision <= 2; revision++ {
			for _, p := range phases {
				id := pando.InstanceID(string(h) + string(rune('0'+revision)) + " " + string(p))
				out = append(out, pando.Instance{ID: id, Host: h, Revision: revision, Phase: p,
					Warm: p == pando.PhaseWarm})
			}
		}
	}
	return out
}

// Each rule drains exactly the instances it is for, each once, and only those that may drain.
func TestInstancesLeaveForAReasonAndOnlyOnce(t *testing.T) {
	for name, c := range map[string]struct {
		moves []Move
		want  func(pando.Instance) bool
	}{
		"a host leaves": {
			Evacuate(everyone(), func(h pando.HostName) bool { return h == "b" }),
			func(i pando.Instance) bool { return i.Host == "b" },
		},
		"the service moved": {
			BringHome(everyone(), "b", func(pando.Instance) string { return "" }),
			func(i pando.Instance) bool { return i.Host == "a" },
		},
		"a host is away": {
			Abandon(everyone(), func(h pando.HostName) bool { return h == "a" }),
			func(i pando.Instance) bool { return i.Host == "b" },
		},
		"another revision serves": {
			Strangers(everyone(), 2, nil),
			func(i pando.Instance) bool { return i.Revision == 1 && i.Phase != pando.PhaseWarm },
		},
		"the service is removed": {Removal(everyone()), func(pando.Instance) bool { return true }},
	} {
		left := map[pando.InstanceID]bool{}
		for _, m := range c.moves {
			if left[m.Drain] || m.Reason == "" {
				t.Errorf("%s: %s leaves twice, or without a reason: %+v", name, m.Drain, m)
			}
			left[m.Drain] = true
		}
		for _, i := range everyone() {
			if want := i.Phase.May(pando.PhaseDraining) && c.want(i); left[i.ID] != want {
				t.Errorf("%s: %s leaves: %t, want %t", name, i.ID, left[i.ID], want)
			}
		}
	}
}

func TestOnlyInstancesOnAbsentHostsAreLost(t *testing.T) {
	lost := Lost(everyone(), func(h pando.HostName) bool { return h == "a" })
	if len(lost) != 2*len(phases) {
		t.Errorf("%d are lost, want %d", len(lost), 2*len(phases))
	}
	for _, id := range lost {
		if id[0] != 'b' {
			t.Errorf("%s is lost although its host is here", id)
		}
	}
}
