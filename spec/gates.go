package spec

import (
	"fmt"
	"strconv"
	"strings"

	"pando.run/pando"
)

var gateFields = []field{
	{name: "metric", doc: "Number of the application (PUT /v1/self/metrics), such as its share of " +
		"errors or its latency. A larger one is worse.", def: "none", example: "error_rate",
		kind: gateMetricKind,
		set:  func(s *pando.Spec, v any) { s.Rollout.Gate.Metric = pando.Metric(v.(string)) },
		get:  func(s pando.Spec) any { return string(s.Rollout.Gate.Metric) }},
	{name: "worse_than", doc: "The rollout goes back when the mean of the new instances stays above " +
		"this multiple of the mean of the old ones for 2s.", def: "1.5", example: "2", kind: numberKind,
		set: func(s *pando.Spec, v any) { s.Rollout.Gate.WorseThan = v.(float64) },
		get: func(s pando.Spec) any { return s.Rollout.Gate.WorseThan }},
	{name: "above", doc: "The rollout never goes back for a number up to this one. Without a number " +
		"of the old instances it is the limit.", def: "0", example: "0.01", kind: numberKind,
		set: func(s *pando.Spec, v any) { s.Rollout.Gate.Above = v.(float64) },
		get: func(s pando.Spec) any { return s.Rollout.Gate.Above }},
}

var gateMetricKind = textKind(`^[a-z][a-z0-9_.-]{0,62}$`,
	"the name of a number of the application, such as error_rate", stringOnly,
	func(s string) (any, error) { return s, checkGateMetric(pando.Metric(s)) })

func checkGateMetric(m pando.Metric) error {
	if !m.Custom() {
		return fmt.Errorf("%w: %s is no number of the application", pando.ErrInvalid, m)
	}
	return m.Check()
}

// CanaryMin and CanaryMax bound the share of a canary.
const (
	CanaryMin = 0.01
	CanaryMax = 0.5
)

var canaryKind = textKind(`^[0-9]{1,2}(\.[0-9]{1,2})?%$`, "a share from 1% to 50%, such as 10%",
	stringOnly, func(s string) (any, error) {
		v, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
		if err != nil || v < 100*CanaryMin || v > 100*CanaryMax {
			return nil, fmt.Errorf("%s: want a share from 1%% to 50%%", s)
		}
		return v / 100, nil
	})

func canaryText(share float64) string {
	if share == 0 {
		return ""
	}
	return strconv.FormatFloat(100*share, 'g', 6, 64) + "%"
}

// canary checks the canary of a rollout and its gate.
func (c *checks) canary(s pando.Spec) {
	r := s.Rollout
	c.that(r.Canary == 0 || r.Canary >= CanaryMin && r.Canary <= CanaryMax,
		"rollout.canary: %g: want 0.01 to 0.5", r.Canary)
	c.seconds("rollout.soak_seconds", r.SoakSeconds)
	c.seconds("rollout.deadline_seconds", r.DeadlineSeconds)
	c.number("rollout.gate.worse_than", r.Gate.WorseThan)
	c.number("rollout.gate.above", r.Gate.Above)
	if r.Gate.Metric != "" {
		c.also(checkGateMetric(r.Gate.Metric))
	}
	for _, why := range canaryConflicts(s) {
		c.that(false, "%s: %s", why.path, why.text)
	}
}

// canaryConflicts returns the keys of a canary that contradict each other or the rest of the spec.
func canaryConflicts(s pando.Spec) (out []conflict) {
	r := s.WithDefaults().Rollout
	stopFirst := r.Order == pando.StopFirst || r.Surge == noSurge
	limits := r.Gate.WorseThan != 0 || r.Gate.Above != 0
	for _, one := range []struct {
		wrong bool
		conflict
	}{
		{r.Canary > 0 && stopFirst, conflict{"rollout.canary", "runs beside the old instances, and the " +
			"order is stop-first: drop canary, or write order: start-first"}},
		{r.Canary == 0 && r.SoakSeconds > 0, conflict{"rollout.soak",
			"needs a canary: add canary: 10%"}},
		{r.Canary == 0 && r.Gate.Metric != "", conflict{"rollout.gate.metric",
			"needs a canary to compare: add canary: 10%"}},
		{r.Gate.Metric == "" && limits, conflict{"rollout.gate",
			"names no number: add metric, such as metric: error_rate"}},
		{r.Canary > 0 && r.DeadlineSeconds <= r.SoakSeconds, conflict{"rollout.deadline",
			"is over before the soak is: raise it, or lower soak"}},
	} {
		if one.wrong {
			out = append(out, one.conflict)
		}
	}
	return out
}
