package process

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

// The small shim is used if it is of the same build as its agent. In any other case the pando
// binary is its own shim, so an upgrade that forgets the small one loses nothing but memory.
func TestTheSmallShimIsUsedIfItIsOfTheSameBuild(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, beside := range map[string][]byte{
		"of the same build": self, "no program": []byte("#!/bin/sh\n"), "missing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			pando := filepath.Join(t.TempDir(), "pando")
			small := filepath.Join(filepath.Dir(pando), shimName)
			want := pando
			if beside != nil {
				if err := os.WriteFile(small, beside, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if name == "of the same build" {
				want = small
			}
			if got := ShimCommand(pando); len(got) != 1 || got[0] != want {
				t.Errorf("got %v, want %s", got, want)
			}
		})
	}
}

func TestBuildsDifferInAnyOfTheirMarks(t *testing.T) {
	build := func(change func(*debug.BuildInfo)) *debug.BuildInfo {
		b := &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: "v1.2.0"},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "GOARCH",
				Value: "amd64"}, {Key: "vcs.time", Value: "now"}}}
		change(b)
		return b
	}
	one := build(func(*debug.BuildInfo) {})
	for name, c := range map[string]struct {
		change func(*debug.BuildInfo)
		same   bool
	}{
		"nothing":      {func(*debug.BuildInfo) {}, true},
		"other flags":  {func(b *debug.BuildInfo) { b.Settings[2].Value = "later" }, true},
		"compiler":     {func(b *debug.BuildInfo) { b.GoVersion = "go1.27" }, false},
		"release":      {func(b *debug.BuildInfo) { b.Main.Version = "v1.3.0" }, false},
		"commit":       {func(b *debug.BuildInfo) { b.Settings[0].Value = "abd" }, false},
		"architecture": {func(b *debug.BuildInfo) { b.Settings[1].Value = "arm64" }, false},
		"no settings":  {func(b *debug.BuildInfo) { b.Settings = nil }, false},
	} {
		if got := sameBuild(one, build(c.change)); got != c.same {
			t.Errorf("%s: the same build: %v, want %v", name, got, c.same)
		}
	}
}
