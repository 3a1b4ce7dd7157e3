package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// A report of an ordinal that leads is recorded once, with its reason, and outlives the agent. An
// instance that is no ordinal cannot lead.
func TestAnOrdinalLeads(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		if err := b.agent.Lead(b.ctx, "web-1", 3); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("an instance that is no ordinal leads: %v", err)
		}
		i := b.world().Instances["web-1"].V
		i.ID, i.Ordinal, i.Phase = "web-2", 2, pando.PhasePlaced
		b.put(i)
		b.ok(b.agent.Ready(b.ctx, "web-2"))
		b.pass(time.Second)
		for _, term := range []int64{3, 3, 4, 0} {
			b.ok(b.agent.Lead(b.ctx, "web-2", term))
			b.pass(time.Second)
			if got := b.world().Instances["web-2"].V.Term; got != term {
				t.Errorf("the record has term %d, want %d", got, term)
			}
			if term == 4 {
				b.restart()
				b.pass(time.Second)
			}
		}
		var reasons []string
		for _, d := range b.world().DecisionsOf(web) {
			if d.Kind == pando.DecidedLeader {
				reasons = append(reasons, d.Reason)
			}
		}
		if got, want := strings.Join(reasons, "; "), "web-1 leads in term 3; web-1 leads in term 4; "+
			"web-1 follows, and led in term 4"; got != want {
			t.Errorf("the decisions are %q, want %q", got, want)
		}
	})
}

func TestAPositionIsTheLastWord(t *testing.T) {
	for output, want := range map[string]string{
		"a:7":                             "a:7",
		"starting\nrecovered\na:7\n\n":    "a:7",
		"WSREP: Recovered position: a:12": "a:12",
		"a:7\nbye":                        "",
		"":                                "",
		" \n":                             "",
	} {
		p, err := positionIn(strings.Split(output, "\n"))
		if want == "" && err == nil || want != "" && (err != nil || p.String() != want) {
			t.Errorf("%q has the position %v (%v), want %q", output, p, err, want)
		}
	}
}
