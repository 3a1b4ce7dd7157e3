package spec

import (
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

func base() pando.Spec {
	return pando.Spec{
		Name: "web", Command: []string{"./web"}, Environment: map[string]string{"A": "1", "B": "2"},
		Scale: pando.Scale{Min: 1, Max: 4},
	}
}

func TestAChangeIsNamedByItsKey(t *testing.T) {
	for want, change := range map[string]func(*pando.Spec){
		"":                             func(*pando.Spec) {},
		"command":                      func(s *pando.Spec) { s.Command = []string{"./web", "-v"} },
		"environment.B":                func(s *pando.Spec) { s.Environment["B"] = "3" },
		"environment.A":                func(s *pando.Spec) { delete(s.Environment, "A") },
		"environment.A, environment.B": func(s *pando.Spec) { s.Environment = nil },
		"environment.C":                func(s *pando.Spec) { s.Environment["C"] = "" },
		"scale.max":                    func(s *pando.Spec) { s.Scale.Max = 5 },
		"health.ready": func(s *pando.Spec) {
			s.Health.Ready = pando.Probe{Kind: pando.ProbeTCP}
		},
		"working_dir, scale.min": func(s *pando.Spec) { s.WorkingDir, s.Scale.Min = "/srv", 2 },
		"ports": func(s *pando.Spec) {
			s.Ports = []pando.Port{{Published: 80, Target: 80, Protocol: pando.TCP}}
		},
	} {
		a, b := base().WithDefaults(), base()
		change(&b)
		b = b.WithDefaults()
		if got := strings.Join(Changed(a, b), ", "); got != want {
			t.Errorf("%q is named, want %q", got, want)
		}
		if back := Changed(b, a); strings.Join(back, ", ") != want {
			t.Errorf("the other way %q is named, want %q", back, want)
		}
		if lines := Diff(a, b); (len(lines) == 0) != (want == "") {
			t.Errorf("%s: the lines are %q", want, lines)
		}
	}
}

func TestADiffShowsTheLinesAroundAChange(t *testing.T) {
	a, b := base(), base()
	b.Environment["B"] = "3"
	want := []string{` command: ["./web"]`, " environment:", `   A: "1"`, `-  B: "2"`, `+  B: "3"`}
	got := Diff(a, b)
	if len(got) < 6 || !strings.HasPrefix(got[0], "@@ ") {
		t.Fatalf("got %q", got)
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("no line %q in\n%s", line, strings.Join(got, "\n"))
		}
	}
}

func TestAnEmptyListIsNoList(t *testing.T) {
	a, b := base(), base()
	a.Ports, b.Ports = nil, []pando.Port{}
	a.Environment, b.Environment = nil, map[string]string{}
	if got := Changed(a, b); len(got) != 0 {
		t.Errorf("%q differ", got)
	}
}
