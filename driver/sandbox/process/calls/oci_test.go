package calls

import (
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// holds reports whether a rule of the runtime holds for the arguments of a call.
func holds(t *testing.T, c RuntimeCall, args [3]uint64) bool {
	t.Helper()
	for _, a := range c.Args {
		v := args[a.Index]
		switch a.Op {
		case "SCMP_CMP_EQ":
			if v != a.Value {
				return false
			}
		case "SCMP_CMP_GT":
			if v <= a.Value {
				return false
			}
		case "SCMP_CMP_MASKED_EQ":
			if v&a.Value != a.ValueTwo {
				return false
			}
		default:
			t.Fatalf("unknown comparison %s", a.Op)
		}
	}
	return true
}

// The filter of the runtime has the same verdicts as that of the shim.
func TestTheFilterOfARuntimeIsThatOfTheShim(t *testing.T) {
	a, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	ask, filter := verdicts(t), ForRuntime()
	same := func(name string, args [3]uint64) {
		t.Helper()
		verdict := uint32(unix.SECCOMP_RET_ALLOW)
		for _, c := range filter.Syscalls {
			if slices.Contains(c.Names, name) && holds(t, c, args) {
				verdict = unix.SECCOMP_RET_ERRNO | c.Errno
			}
		}
		if want := ask(call(uint32(a.SyscallNames[name]), uint32(a.ID), args[:]...)); verdict != want {
			t.Errorf("%s%v: %#x, want %#x", name, args, verdict, want)
		}
	}
	for name := range a.SyscallNames {
		if name != "socket" {
			same(name, [3]uint64{})
		}
	}
	for bit := range 32 {
		same("clone", [3]uint64{1 << bit})
		same("unshare", [3]uint64{1<<bit | unix.CLONE_FILES})
	}
	for n := range uint64(64) {
		same("socket", [3]uint64{n, unix.SOCK_STREAM, 0})
		same("socket", [3]uint64{unix.AF_NETLINK, unix.SOCK_RAW, n})
	}
}
