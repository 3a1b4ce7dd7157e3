package lifecycle

import (
	"fmt"
	"math"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// canaries returns the number of instances that soak before the rollout continues, or 0 if none do.
// It is the share of the wanted instances, rounded up, so that a canary gets at most the flows of
// another instance.
func (t Takeover) canaries(wanted int) int {
	if t.Rule.Canary <= 0 || t.Soaked || t.Alike[t.Current] || t.Rule.Order == pando.StopFirst ||
		wanted == 0 {
		return 0
	}
	return max(1, int(math.Ceil(t.Rule.Canary*float64(wanted))))
}

// Share returns the share of new flows for the canaries, or 0 if none soak.
func (s *Stage) Share() float64 {
	if s.facts.canaries(s.wanted) == 0 {
		return 0
	}
	return s.facts.Rule.Canary
}

// Deadline returns the time left for the rollout. ok is false if it has no limit or is paused.
func (s *Stage) Deadline() (left time.Duration, ok bool) {
	t := &s.facts
	return pando.Seconds(t.Rule.DeadlineSeconds) - t.Age, t.Rule.DeadlineSeconds > 0 && !t.Paused
}

// canary returns the next step while n canaries of the target soak. All instances of the current
// revision stay, so a rollback starts nothing. The canaries come on top of the surge.
func (s *Stage) canary(n int) Move {
	t := &s.facts
	current := len(s.old) - s.stale
	switch {
	case s.stale > 0 && current+s.healthy >= s.wanted:
		return Move{Drain: s.old[0], Reason: fmt.Sprintf("revision %d came before it served", t.Target)}
	case s.fresh < n:
		return Move{Start: true, Reason: fmt.Sprintf("%d of %d canaries are revision %d, for %g%% of "+
			"new flows", s.fresh, n, t.Target, 100*t.Rule.Canary)}
	case s.healthy >= n && (t.Rule.Gate.Metric == "" || t.Compared != nil && !t.Compared.Over):
		return Move{Pass: true, Reason: s.passed()}
	case s.fresh+len(s.old) < s.wanted+n && current < s.wanted:
		return Move{Start: true, Former: true, Reason: fmt.Sprintf(
			"%d of %d run while canaries soak", current, s.wanted)}
	case s.healthy >= n && t.Compared != nil:
		return Move{Reason: fmt.Sprintf("%s is %s: the canaries soak on", t.Rule.Gate.Metric,
			figures(*t.Compared, *t))}
	case s.healthy >= n:
		return Move{Reason: fmt.Sprintf("waiting for revision %d to report %s (PUT /v1/self/metrics)",
			t.Target, t.Rule.Gate.Metric)}
	}
	return Move{Wait: s.next, Reason: fmt.Sprintf("%d of %d canaries have soaked for %s",
		s.healthy, n, span.Seconds(max(t.Rule.SoakSeconds, t.Rule.HealthySeconds)))}
}

// passed returns the reason for the end of the soak.
func (s *Stage) passed() string {
	text := fmt.Sprintf("%d canaries of revision %d have soaked for %s", s.healthy, s.facts.Target,
		span.Seconds(s.facts.Rule.SoakSeconds))
	if c := s.facts.Compared; c != nil {
		text += fmt.Sprintf(", %s is %s", s.facts.Rule.Gate.Metric, figures(*c, s.facts))
	}
	return text
}

// failedGate returns why the rollout ends, or "".
func (t Takeover) failedGate() string {
	g := t.Rule.Gate
	switch limit := pando.Seconds(t.Rule.DeadlineSeconds); {
	case g.Metric != "" && t.Compared != nil && t.Compared.Worse && t.Compared.Old == nil:
		return fmt.Sprintf("%s is %s, and the gate allows %g", g.Metric, figures(*t.Compared, t), g.Above)
	case g.Metric != "" && t.Compared != nil && t.Compared.Worse:
		return fmt.Sprintf("%s is %s, and the gate allows %g times as much", g.Metric,
			figures(*t.Compared, t), g.WorseThan)
	case limit > 0 && !t.Paused && t.Age >= limit:
		return fmt.Sprintf("revision %d has not taken over within its deadline of %s", t.Target,
			span.Text(limit))
	}
	return ""
}

// figures returns the numbers of both revisions as a text.
func figures(c pando.Compared, t Takeover) string {
	text := fmt.Sprintf("%.4g in revision %d", c.New, t.Target)
	if c.Old == nil {
		return text
	}
	return text + fmt.Sprintf(" and %.4g in revision %d", *c.Old, t.Current)
}

// GateSpan is how long the new revision must be worse without a break before its gate fails. One
// bad moment is no verdict.
const GateSpan = 2 * time.Second

// Comparison judges the readings of one gate. The zero value has seen none.
type Comparison struct {
	old   *float64  // the newest mean of the serving revision
	worse time.Time // since when the new revision is worse; zero: it is not
}

// Add judges one reading: the numbers of the instances of both revisions. It returns nil while the
// new revision reports none. The last number of the old revision stays valid when its instances
// have left.
func (c *Comparison) Add(g pando.Gate, old, fresh []float64, now time.Time) *pando.Compared {
	if len(old) > 0 {
		m := mean(old)
		c.old = &m
	}
	if len(fresh) == 0 {
		c.worse = time.Time{}
		return nil
	}
	out := &pando.Compared{At: now, New: mean(fresh), Old: c.old}
	switch {
	case !exceeds(g, c.old, out.New):
		c.worse = time.Time{}
	case c.worse.IsZero():
		out.Over, c.worse = true, now
	default:
		out.Over, out.Worse = true, now.Sub(c.worse) >= GateSpan
	}
	return out
}

// exceeds reports whether a number is worse than a gate allows. Without a number of the old
// revision the absolute limit alone counts, if there is one.
func exceeds(g pando.Gate, old *float64, fresh float64) bool {
	if old == nil {
		return g.Above > 0 && fresh > g.Above
	}
	return fresh > g.Above && fresh > g.WorseThan**old
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, v := range all {
		sum += v
	}
	return sum / float64(len(all))
}
