package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// put makes the log of an instance with a last line that is `ago` old.
func put(t *testing.T, dir, name string, bytes int, ago time.Duration, now time.Time) {
	t.Helper()
	folder := filepath.Join(dir, name)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	for n, file := range []string{"log", "log.1"} {
		path := filepath.Join(folder, file)
		if err := os.WriteFile(path, make([]byte, bytes/2), 0o640); err != nil {
			t.Fatal(err)
		}
		at := now.Add(-ago - time.Duration(n)*time.Hour)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		name, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, name)
	}
	return out
}

// The rotated files of all living instances share one bound. The oldest go first, each with its
// times. The newest file of an instance stays.
func TestSweepBoundsTheLogsOfLivingInstances(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	alive := map[string]bool{}
	for n := range 10 {
		name := fmt.Sprintf("default/web/web-%d", n)
		alive[name] = true
		put(t, dir, name, 200, time.Duration(n)*time.Minute, now)
		times := filepath.Join(dir, name, "times.1")
		if err := os.WriteFile(times, []byte("x"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	sweepAll(t, dir, func() map[string]bool { return alive }, now,
		keeping{age: time.Hour, perService: 3, bytes: 1, older: 350})
	for n := range 10 {
		folder := filepath.Join(dir, fmt.Sprintf("default/web/web-%d", n))
		if _, err := os.Stat(filepath.Join(folder, "log")); err != nil {
			t.Errorf("the newest file of a living instance: %v", err)
		}
		for _, file := range []string{"log.1", "times.1"} {
			_, err := os.Stat(filepath.Join(folder, file))
			if there := err == nil; there != (n < 3) { // three of 100 bytes fit
				t.Errorf("%s of the instance with the age %d min: there %t", file, n, there)
			}
		}
	}
}

// Logs of ended instances go by age, number and size, the oldest first. Those of running ones stay.
func TestSweepKeepsWhatIsWithinTheBounds(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	put(t, dir, "default/web/web-alive", 1000, 100*24*time.Hour, now)
	put(t, dir, "default/web/web-old", 10, 8*24*time.Hour, now)
	for n := range 5 {
		put(t, dir, fmt.Sprintf("default/web/web-%d", n), 10, time.Duration(n)*time.Minute, now)
	}
	put(t, dir, "shop/db/db-new", 100, time.Second, now)
	put(t, dir, "shop/db/db-mid", 100, time.Hour, now)
	// The log of a daemon.
	if err := os.WriteFile(filepath.Join(dir, "server.log"), []byte("x"), 0o640); err != nil {
		t.Fatal(err)
	}
	living := func() map[string]bool { return map[string]bool{"default/web/web-alive": true} }
	sweepAll(t, dir, living, now, keeping{age: 7 * 24 * time.Hour, perService: 3, bytes: 135, older: 1000})
	want := []string{"default/web/web-0", "default/web/web-1", "default/web/web-2",
		"default/web/web-alive", "shop/db/db-new"}
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "server.log")); err != nil {
		t.Error(err)
	}
}

// A tenant whose instances end in a loop loses its own logs: not the older ones of another tenant, of
// ended or living instances.
func TestLogsHaveAShareForEachTenant(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	put(t, dir, "bank/db/db-ended", 100, 5*time.Hour, now)
	put(t, dir, "bank/db/db-alive", 100, 5*time.Hour, now)
	alive := map[string]bool{"bank/db/db-alive": true}
	for n := range 9 {
		put(t, dir, fmt.Sprintf("acme/s%d/s-ended", n), 100, time.Duration(n)*time.Minute, now)
		name := fmt.Sprintf("acme/s%d/s-alive", n)
		put(t, dir, name, 100, time.Duration(n)*time.Minute, now)
		alive[name] = true
	}
	sweepAll(t, dir, func() map[string]bool { return alive }, now,
		keeping{age: 7 * 24 * time.Hour, perService: 3, bytes: 300, older: 150})
	for _, file := range []string{"db-ended/log", "db-ended/log.1", "db-alive/log.1"} {
		if _, err := os.Stat(filepath.Join(dir, "bank/db", file)); err != nil {
			t.Errorf("a flood of acme removed a log of bank: %v", err)
		}
	}
	if ended, _ := filepath.Glob(filepath.Join(dir, "acme/*/s-ended")); len(ended) != 2 {
		t.Errorf("acme has the logs %q, want two", ended)
	}
}

// Logs without a line count as well: services that come and go leave a folder each.
func TestEmptyLogsTakeRoom(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	for n := range 9 {
		put(t, dir, fmt.Sprintf("acme/s%d/s-1", n), 0, time.Duration(n)*time.Minute, now)
	}
	sweepAll(t, dir, func() map[string]bool { return nil }, now,
		keeping{age: time.Hour, perService: 3, bytes: 36, block: 4}) // two files and their folder: 12
	want := []string{"acme/s0/s-1", "acme/s1/s-1", "acme/s2/s-1"}
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
}

// The sweep runs by itself when a driver starts.
func TestADriverSweepsOldLogs(t *testing.T) {
	d := newDriver(t, 0)
	run(t, d, nil, "sh", "-c", "echo here; exec sleep 100")
	put(t, d.LogDir, "default/gone/gone-1", 10, 30*24*time.Hour, time.Now())
	put(t, d.LogDir, "default/web/web-1", 10, 30*24*time.Hour, time.Now())
	again, err := New(d.Config) // as after a restart
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for len(names(t, d.LogDir)) > 1 && time.Now().Before(deadline) {
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if got := names(t, d.LogDir); !slices.Equal(got, []string{"default/web/web-1"}) {
		t.Errorf("left are %v, want that of the living instance", got)
	}
}

func sweepAll(
	t *testing.T, dir string, living func() map[string]bool, now time.Time, k keeping,
) {
	t.Helper()
	if err := sweep(dir, func() (map[string]bool, error) { return living(), nil }, now, k); err != nil {
		t.Fatal(err)
	}
}
