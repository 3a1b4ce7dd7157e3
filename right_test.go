package pando

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAMemberHasTheRightsThatItWasGiven(t *testing.T) {
	m := Member{Name: "host2"}
	for _, r := range Rights {
		if m.Has(r) {
			t.Errorf("a new member may %s", r)
		}
		if !(Member{Server: true}).Has(r) {
			t.Errorf("a server's host may not %s", r)
		}
	}
	at := time.Unix(1, 0)
	given, changed := m.Grant(RightDeploy, Granting{true, "alice", at})
	if !changed || !given.Has(RightDeploy) || given.Has(RightExec) || m.Rights != nil {
		t.Errorf("%v, %+v; before: %+v", changed, given, m)
	}
	if _, changed := given.Grant(RightDeploy, Granting{true, "bob", at}); changed {
		t.Error("a second grant changed the record")
	}
	taken, changed := given.Grant(RightDeploy, Granting{false, "bob", at})
	if !changed || taken.Has(RightDeploy) || !given.Has(RightDeploy) ||
		taken.Rights[RightDeploy].By != "bob" {
		t.Errorf("%v, %+v; before: %+v", changed, taken, given)
	}
}

func TestRightsInWords(t *testing.T) {
	for want, h := range map[string]HostStatus{
		"-":   {},
		"all": {Server: true},
		"deploy,admit": {Rights: map[Right]Granting{
			RightAdmit: {May: true}, RightExec: {}, RightDeploy: {May: true}}},
	} {
		if got := h.RightsText(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, r := range Rights {
		if got, err := ParseRight(string(r)); err != nil || got != r {
			t.Errorf("%s: %q, %v", r, got, err)
		}
	}
	if _, err := ParseRight("all"); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "deploy, exec or admit") {
		t.Error(err)
	}
	err := Member{Name: "host2"}.Lacks(RightExec)
	if !errors.Is(err, ErrForbidden) ||
		!strings.Contains(err.Error(), "pando hosts allow host2 exec") {
		t.Error(err)
	}
}
