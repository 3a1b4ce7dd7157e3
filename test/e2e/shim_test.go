package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// shimKiBMax bounds the memory that a shim has for itself. It takes about 1,500 KiB.
const shimKiBMax = 3072

// Each instance has a shim. It is the small program, not the whole of Pando.
func TestAShimIsSmall(t *testing.T) {
	p := labtest.Up(t)
	p.Deploy(labtest.Echo("web", "scale: {min: 3}"))
	records, err := filepath.Glob(p.Path(p.Host(), "/run/pando/sandbox/*/slot.json"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range records {
		var slot struct {
			Instance string
			PID      int
		}
		b, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(b, &slot) != nil || slot.Instance == "" {
			continue
		}
		seen++
		at := p.Path(p.Host(), fmt.Sprintf("/proc/%d", slot.PID))
		if exe, err := os.Readlink(filepath.Join(at, "exe")); filepath.Base(exe) != "pando-shim" {
			t.Errorf("the shim of %s is the program %q (%v)", slot.Instance, exe, err)
		}
		if kib := privateKiB(t, filepath.Join(at, "smaps_rollup")); kib > shimKiBMax {
			t.Errorf("the shim of %s has %d KiB for itself, want at most %d", slot.Instance, kib,
				shimKiBMax)
		}
	}
	if seen != 3 {
		t.Errorf("%d instances have a shim, want 3", seen)
	}
}

// privateKiB returns the memory that only one process has.
func privateKiB(t *testing.T, rollup string) int {
	t.Helper()
	b, err := os.ReadFile(rollup)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Private_Dirty:" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no private memory in %s", rollup)
	return 0
}
