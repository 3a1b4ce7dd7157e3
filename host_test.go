package pando

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestLabelsOfAHostAreSortedAndReadBack(t *testing.T) {
	got, err := LabelsOf([]string{"zone=a", "rack=3", "zone-2=b"})
	if err != nil || got != "rack=3 zone-2=b zone=a" {
		t.Fatalf("%q, %v", got, err)
	}
	h := Host{Name: "h1", Labels: got}
	for name, want := range map[string]string{
		"zone": "a", "zone-2": "b", "rack": "3", "disk": "", "zon": "", "": "", "host": "h1",
	} {
		if v := h.Label(name); v != want {
			t.Errorf("label %q is %q, want %q", name, v, want)
		}
	}
	if none, err := LabelsOf(nil); none != "" || err != nil || (Host{}).Label("zone") != "" {
		t.Errorf("no labels are %q, %v", none, err)
	}
}

// A member writes its own record. One with other labels than `pando up` accepts is refused.
func TestLabelsThatNobodyCanMatchAreRefused(t *testing.T) {
	var many []string
	for n := range LabelsMax + 1 {
		many = append(many, fmt.Sprintf("l%d=x", n))
	}
	for name, labels := range map[string][]string{
		"no value": {"zone"}, "an empty value": {"zone="}, "no name": {"=a"}, "a capital": {"zone=A"},
		"a space": {"zone=a b"}, "twice": {"zone=a", "rack=1", "zone=b"},
		"the same twice": {"a=1", "a=1"}, "another name": {"host=h2"},
		"too many": many, "too long": {"zone=" + strings.Repeat("a", 54)}, "two signs": {"a=b=c"},
	} {
		if got, err := LabelsOf(labels); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		h := Host{Name: "h1", Labels: strings.Join(labels, " ")}
		if err := h.Check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s in a record: %v", name, err)
		}
	}
	if err := (Host{Name: "h1", Labels: "rack=3 zone=a"}).Check(); err != nil {
		t.Error(err)
	}
}
