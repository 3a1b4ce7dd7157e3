package ebpf

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Restore resets the kernel's settings after several starts, except those that others changed
// since.
func TestSettingsGoBackToWhatTheyWere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	runtime.LockOSThread() // never unlocked: the thread and its namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(sysctls + name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	set := func(name, value string) {
		if err := os.WriteFile(sysctls+name, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	const forwarding, filter, redirects = "ipv4/ip_forward", "ipv4/conf/all/rp_filter",
		"ipv4/conf/all/send_redirects"
	set(forwarding, "0")
	set(filter, "2")
	set(redirects, "1")
	file := filepath.Join(t.TempDir(), "settings.json")
	wanted := []setting{{forwarding, "1"}, {filter, "0"}, {redirects, "0"}}
	for range 2 { // the second start finds its own values
		if err := note(file, wanted); err != nil {
			t.Fatal(err)
		}
		for _, s := range wanted {
			set(s.name, s.value)
		}
	}
	set(redirects, "1")
	if err := Restore(file); err != nil {
		t.Fatal(err)
	}
	if got := []string{read(forwarding), read(filter), read(redirects)}; got[0] != "0" ||
		got[1] != "2" || got[2] != "1" {
		t.Errorf("the settings are %v, want 0, 2 and 1", got)
	}
	if err := Restore(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("nothing was noted: %v", err)
	}
}
