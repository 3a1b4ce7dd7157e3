package spec

import (
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

func TestGrantsAreReadInBothForms(t *testing.T) {
	want := []pando.Grant{"device=kvm", "path=/proc/modules:ro", "netns=host"}
	for _, text := range []string{
		"grants: [device: kvm, \"path=/proc/modules\", netns: host]",
		"grants:\n  - device: /dev/kvm\n  - path: /proc/modules:ro\n  - netns=host",
	} {
		s, err := published(t, text)
		if err != nil || !slices.Equal(s.Grants, want) {
			t.Errorf("%s: %v, %v", text, s.Grants, err)
			continue
		}
		again, err := Parse("web.yaml", []byte(Format(s)), "/srv")
		if err != nil || !slices.Equal(again[0].Grants, want) {
			t.Errorf("printed and read again: %v, %v", again, err)
		}
	}
}

func TestGrantsThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"grants: kvm": "web.yaml:4:9: grants: want a list",
		"grants: []":  "want a list",
		"grants: [device: null]": "web.yaml:4:18: grants[0].device: want `device: NAME`, `path: " +
			"PATH:ro`, `path: PATH:rw` or `netns: host`; this is null of YAML, which is empty: write " +
			"\"null\" for the word",
		"grants:\n  - device:":                     "`netns: host`; this is empty",
		"grants: [device: kvm, device: kvm]":       "grants: the grant device=kvm is here twice",
		"grants: [\"path=/a:ro\", \"path=/a:rw\"]": "twice",
		"grants: [{device: kvm, netns: host}]":     "one grant in each item",
		"grants: [device: ../mem]":                 "name of a file in /dev",
		"grants: [gpu: 0]":                         "want device=NAME",
		"ports: [80]\ngrants: [netns: host]":       "ports: with netns: host",
	} {
		if _, err := published(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
