package calls

import (
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// arch386 marks calls of 32-bit code.
const arch386 = 0x40000003

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
	raw, err := Filter()
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
