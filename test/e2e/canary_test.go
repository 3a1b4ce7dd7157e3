package e2e

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// A new revision that fails one request in twenty is rolled back by its own number. Under load, at
// most the share of its canary reaches it.
func TestABadCanaryHurtsAtMostItsShare(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	spec := func(text, errors string) string {
		return labtest.Echo("web", "environment: {TEXT: "+text+", ERRORS: \""+errors+"\"}",
			"scale: {min: 2, max: 4}", "rollout: {canary: 10%, soak: 20s, gate: {metric: error_rate, "+
				"above: 0.01}}")
	}
	web := p.Deploy(spec("one", "0"))
	load := p.Start(labtest.Client, "sh", "-c", `while :; do curl -s --max-time 5 `+
		`-H 'Connection: close' -w '%{http_code}\n' 'http://`+web.VIP+`/?[1-200]' | `+
		`sed '/ /{N;s/\n/ /}'; sleep 0.05; done`)
	load.AwaitText(" one 200")
	said := web.UpdateFails(7, spec("two", "0.05"))
	if !strings.Contains(said, "error_rate is 0.0") {
		t.Errorf("the deploy does not name the number:\n%s", said)
	}
	st := web.Await("the old revision alone", func(s pando.ServiceStatus) bool {
		return s.Current == 1 && s.Target == 1 && s.InRotation == 2 && len(s.Instances) == 2
	})
	lines := strings.Split(load.Stop().Text, "\n")
	var all, two, failed int // since the first request to the canary, and two of them so far
	allAtLast := 0
	for _, l := range lines {
		switch {
		case strings.Contains(l, " two "):
			two++
			allAtLast = all
		case !strings.Contains(l, " one ") || two == 0:
			continue
		}
		all++
		if !strings.HasSuffix(l, " 200") {
			failed++
		}
	}
	t.Logf("%d of %d requests during the trial reached the canary, %d failed", two, allAtLast, failed)
	if two == 0 || failed == 0 || two*100 > 15*allAtLast || failed > two/10+1 {
		t.Errorf("%d of %d requests reached the canary, %d failed; want about 10%% and 0.5%%",
			two, allAtLast, failed)
	}
	for _, text := range []string{web.Why(), p.Pando("rollout", "status", "web")} {
		if !strings.Contains(text, "error_rate is 0.0") {
			t.Errorf("the reason is missing at %d instances:\n%s", st.InRotation, text)
		}
	}
}
