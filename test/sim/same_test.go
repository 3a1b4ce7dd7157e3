// The race detector makes the runtime shuffle goroutines, so a seed does not give one run under
// -race.

//go:build !race

package sim

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"pando.run/pando"
)

// sameSeeds are short runs with one host and with several.
var sameSeeds = []uint64{2, 1, 4, 6, 9}

// sameTries bounds the runs of a seed until two are the same. Runs differ when the runtime preempts
// a goroutine after its thread was away for more than 10 ms. They also differ when the runtime
// picks the order of timers that end at the same instant.
const sameTries = 5

// TestASeedIsOneRun runs some seeds until two runs of each have written the same, byte by byte.
// Usually the first two match. A result that depends on a map, a select or the order of draws never
// repeats.
func TestASeedIsOneRun(t *testing.T) {
	seeds := sameSeeds[:max(1, len(sameSeeds)/slower)]
	if os.Getenv("PANDO_SEED") != "" {
		seeds = []uint64{number(t, "PANDO_SEED", 0)}
	} else if testing.Short() {
		seeds = seeds[:1]
	}
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			var runs [][]string
			for range sameTries {
				synctest.Test(t, func(t *testing.T) { runs = append(runs, journal(run(t, seed, nothingMore))) })
				last := runs[len(runs)-1]
				if t.Failed() || len(last) == 0 {
					t.Fatal("a run ended early")
				}
				if slices.ContainsFunc(runs[:len(runs)-1],
					func(r []string) bool { return slices.Equal(r, last) }) {
					return
				}
				if len(runs) > 1 {
					t.Logf("run %d: %s", len(runs), parting(runs[0], last))
				}
			}
			t.Errorf("no two of %d runs are the same", len(runs))
		})
	}
}

// journal returns a line for every change of every commit.
func journal(written []pando.Batch) (lines []string) {
	for _, b := range written {
		for _, r := range b.Changes {
			lines = append(lines, fmt.Sprintf("%d %s %s", b.Revision, r.Key, r.Value))
		}
	}
	return lines
}

// parting describes the first difference between two journals.
func parting(a, b []string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	some := func(of []string) string { return strings.Join(of[n:min(n+3, len(of))], "\n") }
	return fmt.Sprintf("they part at line %d of %d and %d:\n%s\nand\n%s",
		n, len(a), len(b), some(a), some(b))
}
