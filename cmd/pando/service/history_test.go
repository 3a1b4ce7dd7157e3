package service

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// years is a history with one of everything. Revision 3 is not stored any more.
func years() []pando.Revision {
	web := func(n int, state pando.RevisionState, reason string) pando.Revision {
		s := pando.Spec{Name: "web", Command: []string{"./web"}, Environment: map[string]string{}}
		return pando.Revision{Service: pando.DefaultService("web"), Number: n, Spec: s, State: state,
			Reason: reason, At: consoletest.Noon.Local(), By: pando.Asker{Kind: pando.AskerOperator, Name: "anna"}}
	}
	all := []pando.Revision{
		web(1, pando.RevisionRetired, "revision 2 serves"),
		web(2, pando.RevisionFailed, "it exited with 3\x1b[2J"),
		web(4, pando.RevisionRetired, "revision 5 serves"),
		web(5, pando.RevisionRetired, "revision 6 serves"),
		web(6, pando.RevisionCurrent, "2 in rotation"),
		web(7, pando.RevisionRolling, ""),
	}
	all[1].Spec.Environment["LOG"] = "debug"
	all[1].By.Name = ""
	all[3].Spec.Command, all[3].Spec.Scale.Max = []string{"./web", "-v"}, 4
	all[4].Repeats, all[4].Spec.Command = 4, []string{"./web"}
	for _, k := range []string{"A", "B", "C", "D", "E"} {
		all[5].Spec.Environment[k] = "1"
	}
	return all
}

func TestTheHistoryNamesWhatChanged(t *testing.T) {
	var b bytes.Buffer
	history(&b, versions(years()))
	got := strings.ReplaceAll(b.String(), consoletest.Noon.Local().Format("2006-01-02 15:04:05"), "NOON")
	want := "REV STATE WHEN BY CHANGED OUTCOME\n" +
		"1 retired NOON anna first revision 2 serves\n" +
		"2 failed NOON operator environment.LOG it exited with 3\uFFFD[2J\n" +
		"4 retired NOON anna - revision 5 serves\n" +
		"5 retired NOON anna command, scale.max revision 6 serves\n" +
		"6 current NOON anna back to 4 2 in rotation\n" +
		"7 rolling NOON anna environment.A, environment.B, environment.C and 2 more -"
	if got = consoletest.Squeeze(got); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestADiffIsBetweenTheRevisionsThatWereAskedFor(t *testing.T) {
	web := pando.DefaultService("web")
	for _, c := range []struct {
		args string
		a, b int
		err  error
		code int
	}{
		{"", 6, 7, nil, 0}, {"2", 2, 7, nil, 0}, {"1 4", 1, 4, nil, 0}, {"4 1", 4, 1, nil, 0},
		{"3", 0, 0, pando.ErrNotFound, 4}, {"x", 0, 0, nil, 2}, {"0", 0, 0, nil, 2},
		{"1 9", 0, 0, pando.ErrNotFound, 4},
	} {
		a, b, err := pair(web, years(), strings.Fields(c.args))
		if cli.CodeOf(err) != c.code || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%q: %v, exit code %d, want %d", c.args, err, cli.CodeOf(err), c.code)
		}
		if err == nil && (a.Number != c.a || b.Number != c.b) {
			t.Errorf("%q: %d and %d, want %d and %d", c.args, a.Number, b.Number, c.a, c.b)
		}
	}
	if _, _, err := pair(web, years()[:1], nil); !errors.Is(err, pando.ErrRefused) ||
		!strings.Contains(err.Error(), "`pando diff FILE`") {
		t.Errorf("a single revision: %v", err)
	}
	if _, _, err := pair(web, nil, nil); err == nil {
		t.Error("no revision at all is no error")
	}
}

func TestADiffNamesBothRevisions(t *testing.T) {
	var b bytes.Buffer
	comparison{Service: pando.DefaultService("web"), From: 1, To: 2, Lines: []string{"@@ -1 +1 @@",
		"-a\x1b", "+b"}}.print(&b)
	want := "--- web revision 1\n+++ web revision 2\n@@ -1 +1 @@\n-a\uFFFD\n+b\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
	b.Reset()
	comparison{Service: pando.DefaultService("web"), From: 1, To: 3}.print(&b)
	if b.String() != "revisions 1 and 3 of web have the same spec\n" {
		t.Errorf("got %q", b.String())
	}
}

func TestAFileIsToldFromAService(t *testing.T) {
	for name, want := range map[string]bool{"web": false, "shop/web": false, "web.yaml": true,
		"a/web.yml": true, "./web": true, "../x/web": true, "/srv/web": true, "yaml": false} {
		if got := isFile(name); got != want {
			t.Errorf("%s: a file: %v", name, got)
		}
	}
}
