package lifecycle

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

func TestTrimmingKeepsTheNewestIntentsWaitingAsksAndLivingInstances(t *testing.T) {
	states := []pando.IntentState{
		pando.IntentAsked, pando.IntentPlaced, pando.IntentInRotation, pando.IntentRefused,
	}
	rapid.Check(t, func(t *rapid.T) {
		var all []pando.Intent
		for n := range rapid.IntRange(0, 30).Draw(t, "intents") {
			all = append(all, pando.Intent{
				ID: pando.IntentID(fmt.Sprintf("%02d", n)), Instance: pando.InstanceID(fmt.Sprint(n % 5)),
				State: rapid.SampledFrom(states).Draw(t, "state"),
			})
		}
		living := func(i pando.InstanceID) bool { return i < "2" }
		keep, most := rapid.IntRange(0, 20).Draw(t, "keep"), rapid.IntRange(0, 9).Draw(t, "most")
		gone := OldIntents(all, keep, most, living)
		for n, i := range all {
			deleted := slices.Contains(gone, i.Key())
			newest := n >= len(all)-keep
			inUse := i.State == pando.IntentAsked || i.State == pando.IntentPlaced && living(i.Instance)
			if deleted && (newest || inUse) {
				t.Fatalf("intent %d of %d is deleted: %s of %s", n, len(all), i.State, i.Instance)
			}
			if !deleted && !newest && !inUse && len(gone) < most {
				t.Fatalf("intent %d of %d stays", n, len(all))
			}
		}
		if len(gone) > most {
			t.Fatalf("%d at once, at most %d", len(gone), most)
		}
	})
}

func TestTrimmingNeverForgetsARememberedDecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []pando.Decision
		remembered := map[string]bool{}
		for n := range rapid.IntRange(0, 30).Draw(t, "decisions") {
			id := fmt.Sprintf("%02d", n)
			all = append(all, pando.Decision{ID: id})
			if rapid.IntRange(0, 3).Draw(t, "remembered") == 0 {
				remembered[id] = true
			}
		}
		keep, most := rapid.IntRange(0, 20).Draw(t, "keep"), rapid.IntRange(0, 9).Draw(t, "most")
		gone := OldDecisions(all, remembered, keep, most)
		if len(gone) > most || len(gone) > max(0, len(all)-keep) {
			t.Fatalf("%d of %d are deleted, %d at once", len(gone), len(all), most)
		}
		for n, d := range all {
			if slices.Contains(gone, d.Key()) && remembered[d.ID] {
				t.Fatalf("decision %d is forgotten", n)
			}
		}
		if left := len(all) - len(remembered) - keep; len(gone) < min(left, most) {
			t.Fatalf("%d are deleted of %d that may go", len(gone), left)
		}
	})
}

func TestTrimmingKeepsRevisionsInUse(t *testing.T) {
	all := []int{1, 2, 3, 5, 8, 9}
	used := func(n int) bool { return n == 1 || n == 5 }
	for _, c := range []struct {
		keep, most int
		want       []int
	}{
		{6, 9, nil}, {9, 9, nil}, {4, 9, []int{2}}, {2, 9, []int{2, 3}}, {0, 9, []int{2, 3, 8, 9}},
		{0, 1, []int{2}}, {0, 0, nil},
	} {
		if got := OldRevisions(all, used, c.keep, c.most); !slices.Equal(got, c.want) {
			t.Errorf("of %v, keep %d, at most %d: %v are deleted, want %v", all, c.keep, c.most, got, c.want)
		}
	}
}

func TestHistoriesAreBoundedByBytes(t *testing.T) {
	size := func(n *int) int { return *n }
	for _, c := range []struct {
		what        string
		all         []int
		bytes, most int
		want        int
	}{
		{"none", nil, 10, 5, 5},
		{"all fit", []int{1, 2, 3}, 10, 5, 5},
		{"the newest fit", []int{9, 9, 3, 4}, 10, 5, 2},
		{"exactly", []int{9, 5, 5}, 10, 5, 2},
		{"fewer are wanted", []int{1, 1, 1, 1}, 10, 2, 2},
		{"one too large still stays", []int{1, 100}, 10, 5, 1},
	} {
		if got := Fits(c.all, size, c.bytes, c.most); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
	for services, want := range map[int]int{0: 512 << 10, 1: 512 << 10, 1000: 67108, 10000: 16 << 10} {
		if got := HistoryBytes(services); got != want {
			t.Errorf("%d services: %d bytes each, want %d", services, got, want)
		}
	}
	// The estimate of a record is near its stored size.
	d := pando.Decision{ID: "01", Service: pando.DefaultService("web"),
		Reason: strings.Repeat("r", 200)}
	for range 20 {
		d.Lines = append(d.Lines, strings.Repeat("x", 400))
	}
	b, err := json.Marshal(d)
	if est := DecisionBytes(&d); err != nil || est < len(b) || est > 2*len(b) {
		t.Errorf("a decision of %d bytes is taken for %d (%v)", len(b), est, err)
	}
	i := pando.Intent{ID: "01", Service: pando.DefaultService("web"), Verb: pando.VerbReplicate}
	for _, s := range []pando.IntentState{pando.IntentAsked, pando.IntentGranted, pando.IntentPlaced} {
		i = i.Become(s, time.Unix(1, 0), strings.Repeat("y", 100))
	}
	b, err = json.Marshal(i)
	if est := IntentBytes(&i); err != nil || est < len(b) || est > 2*len(b) {
		t.Errorf("an intent of %d bytes is taken for %d (%v)", len(b), est, err)
	}
}
