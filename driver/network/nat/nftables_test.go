package nat

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// inOwnNetwork runs f in its own network namespace.
func inOwnNetwork(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

func rules(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Errorf("nft: %v: %s", err, out)
	}
	return string(out)
}

func TestRulesAreWrittenOnceAndGo(t *testing.T) {
	inOwnNetwork(t, func() {
		four, six := pando.InstanceRange(3)
		for range 2 {
			if err := Translate(four, six); err != nil {
				t.Error(err)
				return
			}
		}
		got := rules(t)
		for want, n := range map[string]int{
			"masquerade": 2,
			"ip saddr 10.128.48.0/20 ip daddr != 10.128.0.0/10 ip daddr != 10.127.0.0/16 masquerade": 1,
			"ip saddr 10.127.0.0/16 notrack": 2, "ip daddr 10.127.0.0/16 notrack": 2,
			"ip6 saddr fd70:616e:646f:ffff::/64 notrack":                           2,
			"ip6 saddr fd70:616e:646f:1:3::/96 ip6 daddr != fd70:616e:646f:1::/64": 1,
		} {
			if strings.Count(got, want) != n {
				t.Errorf("%q is there %d times, want %d, in\n%s", want, strings.Count(got, want), n, got)
			}
		}
		for range 2 {
			if err := Purge(); err != nil {
				t.Error(err)
			}
		}
		if got := rules(t); got != "" {
			t.Errorf("left:\n%s", got)
		}
	})
}

func TestEveryInstanceIsInOneRange(t *testing.T) {
	for _, slot := range []int{0, 1, pando.HostSlots - 1} {
		four, six := pando.InstanceRange(slot)
		if !pando.Instances4.Contains(four.Addr()) || !everyInstance6().Contains(six.Addr()) {
			t.Errorf("slot %d has %s and %s, outside of %s and %s",
				slot, four, six, pando.Instances4, everyInstance6())
		}
	}
}
