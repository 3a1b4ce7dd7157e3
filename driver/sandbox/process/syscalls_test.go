package process

import (
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"

	"pando.run/pando"
)

// attack makes system calls in an instance. Each line is a call and its error, or "done".
const attack = `
import ctypes, os, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
def say(name, number, *args):
    ctypes.set_errno(0)
    r = libc.syscall(number, *args)
    print(name, "done" if r >= 0 else errno.errorcode[ctypes.get_errno()])
say("unshare", 272, 0x10000000)
say("setns", 308, 0, 0)
say("clone3", 435, 0, 0)
say("mount", 165, b"x", b"/tmp", b"tmpfs", 0, 0)
say("bpf", 321, 0, 0, 0)
say("keyctl", 250, 0, -3, 1)
say("add_key", 248, b"user", b"a", b"b", 1, -3)
say("io_uring", 425, 1, 0)
say("perf", 298, 0, 0, -1, -1, 0)
say("userfaultfd", 323, 1)
say("memfd_secret", 447, 0)
say("packet", 41, 17, 3, 0)
say("vsock", 41, 40, 1, 0)
say("alg", 41, 38, 5, 0)
say("netfilter", 41, 16, 3, 12)
say("route", 41, 16, 3, 0)
say("inet", 41, 2, 1, 0)
`

func TestAttacksByCallsAreRefused(t *testing.T) {
	if id, err := arch.GetInfo(""); err != nil || id != arch.X86_64 {
		t.Skip("the numbers are those of amd64")
	}
	d := newDriver(t, 1)
	for _, user := range []string{"", "root"} {
		b := run(t, d, func(s *pando.Spec) { s.User = user }, "sleep", "60")
		_, out, err := b.Exec(t.Context(), []string{"/usr/bin/python3", "-c", attack})
		if err != nil {
			t.Fatal(err)
		}
		want := "unshare EPERM,setns EPERM,clone3 ENOSYS,mount EPERM,bpf EPERM,keyctl EPERM," +
			"add_key EPERM," +
			"io_uring EPERM,perf EPERM,userfaultfd EPERM,memfd_secret EPERM,packet EAFNOSUPPORT," +
			"vsock EAFNOSUPPORT,alg EAFNOSUPPORT,netfilter EAFNOSUPPORT,route done,inet done"
		if got := strings.Join(strings.Split(strings.TrimSpace(string(out)), "\n"), ","); got != want {
			t.Errorf("user %q:\ngot  %s\nwant %s", user, got, want)
		}
	}
}

// The filter is the spec's to lift, also for a command beside the program.
func TestTheFilterIsLiftedBySecurityOpt(t *testing.T) {
	const filters = "grep -c 'Seccomp:.*2' /proc/self/status; " +
		"grep -o 'NoNewPrivs:.1' /proc/self/status"
	d := newDriver(t, 1)
	if got := inside(t, run(t, d, nil, "sleep", "60"), filters); got != "1\nNoNewPrivs:\t1" {
		t.Errorf("by default: %q", got)
	}
	lift := func(s *pando.Spec) { s.SecurityOpt = []string{pando.SeccompUnconfined} }
	b := run(t, d, lift, "sh", "-c", filters+"; exec sleep 60")
	if got := inside(t, b, filters); got != "0\nNoNewPrivs:\t1" {
		t.Errorf("lifted: %q", got)
	}
}
