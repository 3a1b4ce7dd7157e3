package control

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/requests"
)

func TestADeployWarnsOfTwoWriters(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		l.request(requests.Config{Most: 100, Writable: func(s pando.Spec) bool {
			return s.WorkingDir == "/data" && s.User == "postgres"
		}})
		probed := pando.Health{Ready: pando.Probe{Kind: pando.ProbeExec, Command: []string{"pg_isready"}}}
		for name, c := range map[string]struct {
			spec pando.Spec
			want string
		}{
			"pg": {pando.Spec{Health: probed}, "a rollout starts the new one beside the old"},
			"pgs": {pando.Spec{Health: probed, Scale: pando.Scale{Max: 3},
				Rollout: pando.Rollout{Order: pando.StopFirst}}, "scale.max is 3"},
			"one":    {pando.Spec{Health: probed, Scale: pando.Scale{Max: 1}}, ""},
			"other":  {pando.Spec{Health: probed, User: "www-data"}, ""},
			"pandos": {pando.Spec{}, ""},
			"typed": {pando.Spec{Health: probed, State: map[string]pando.StateType{"a": pando.StateSet}},
				""},
		} {
			s := c.spec
			s.Name, s.Command, s.WorkingDir = pando.ServiceName(name), []string{"x"}, "/data"
			if s.User == "" {
				s.User = "postgres"
			}
			st, err := l.Deploy(t.Context(), s, pando.Asker{Kind: pando.AskerOperator})
			if err != nil {
				t.Fatal(err)
			}
			warned := slices.IndexFunc(st.Warnings, func(w string) bool {
				return strings.Contains(w, "write to /data at the same time") && strings.Contains(w, "max: 1")
			})
			switch {
			case c.want == "" && warned >= 0:
				t.Errorf("%s: warned: %s", name, st.Warnings[warned])
			case c.want != "" && (warned < 0 || !strings.Contains(st.Warnings[warned], c.want)):
				t.Errorf("%s: warned %q, want %q", name, st.Warnings, c.want)
			}
		}
	})
}

func TestAPinOfOneWriterIsRefused(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		by := pando.Asker{Kind: pando.AskerOperator}
		spec := pando.Spec{Name: "db", Command: []string{"true"}, Scale: pando.Scale{Max: 1}}
		if _, err := l.Deploy(t.Context(), spec, by); err != nil {
			t.Fatal(err)
		}
		_, err := l.Pin(t.Context(), spec.Key(), 2, 0, by)
		if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "raise scale.max") {
			t.Errorf("a pin of 2 where one may run: %v", err)
		}
		for n := range 2 {
			if _, err := l.Pin(t.Context(), spec.Key(), n, 0, by); err != nil {
				t.Errorf("a pin of %d: %v", n, err)
			}
		}
		// The budget is 3, but a pin is stronger.
		if _, err := l.Pin(t.Context(), web, 9, 0, by); err != nil {
			t.Error(err)
		}
	})
}
