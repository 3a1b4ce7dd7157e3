package process

import (
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// call is the kernel's data of one system call, as a filter reads it.
func call(number, architecture uint32, args ...uint64) []byte {
	out := make([]byte, 64)
	put := func(at int, v uint64, n int) {
		for i := range n {
			// The virtual machine of x/net/bpf reads in network order.
			out[at+i] = byte(v >> (8 * (n - 1 - i)))
		}
	}
	put(0, uint64(number), 4)
	put(4, uint64(architecture), 4)
	for i, a := range args {
		put(16+8*i, a&0xffffffff, 4)
		put(20+8*i, a>>32, 4)
	}
	return out
}

// verdicts returns a function that runs the filter for one call.
func verdicts(t *testing.T) func([]byte) uint32 {
	t.Helper()
	raw, err := filter()
	if err != nil {
		t.Fatal(err)
	}
	rules, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter has an unknown instruction")
	}
	vm, err := bpf.NewVM(rules)
	if err != nil {
		t.Fatal(err)
	}
	return func(data []byte) uint32 {
		n, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(n)
	}
}

func TestTheFilterRefusesWhatNoServiceNeeds(t *testing.T) {
	a, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	ask := verdicts(t)
	id := uint32(a.ID)
	is := func(what string, got uint32, want unix.Errno) {
		t.Helper()
		allowed := want == 0 && got == unix.SECCOMP_RET_ALLOW
		if !allowed && got != unix.SECCOMP_RET_ERRNO|uint32(want) {
			t.Errorf("%s: verdict %#x, want errno %d", what, got, want)
		}
	}
	banned := map[string]bool{"clone3": true}
	for _, name := range refused {
		banned[name] = true
		if number, ok := a.SyscallNames[name]; ok {
			is(name, ask(call(uint32(number), id)), unix.EPERM)
		}
	}
	number := func(name string) uint32 { return uint32(a.SyscallNames[name]) }
	is("clone3", ask(call(number("clone3"), id)), unix.ENOSYS)
	for name, n := range a.SyscallNames {
		if name != "socket" && !banned[name] {
			is(name, ask(call(uint32(n), id)), 0)
		}
	}
	for bit := range 32 {
		flag := uint64(1) << bit
		want := unix.Errno(0)
		if flag&namespaces != 0 {
			want = unix.EPERM
		}
		is("clone", ask(call(number("clone"), id, flag)), want)
		is("unshare", ask(call(number("unshare"), id, flag|unix.CLONE_FILES)), want)
	}
	for family := range uint64(64) {
		want := unix.Errno(unix.EAFNOSUPPORT)
		switch family {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK:
			want = 0
		}
		is("socket", ask(call(number("socket"), id, family, unix.SOCK_STREAM, 0)), want)
	}
	netfilter := call(number("socket"), id, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	is("netfilter", ask(netfilter), unix.EAFNOSUPPORT)
	is("x32", ask(call(number("mount")|0x40000000, id)), unix.ENOSYS)
	is("a 32-bit program", ask(call(21, arch386)), unix.ENOSYS)
}

// arch386 marks calls of 32-bit code.
const arch386 = 0x40000003

// Each name is a call of some architecture, so none has a slip.
func TestEveryRefusedCallIsKnownSomewhere(t *testing.T) {
	for _, name := range refused {
		found := false
		for _, a := range []*arch.Info{arch.X86_64, arch.AARCH64, arch.I386, arch.ARM} {
			_, ok := a.SyscallNames[name]
			found = found || ok
		}
		if !found {
			t.Errorf("no architecture has %s", name)
		}
	}
}

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
