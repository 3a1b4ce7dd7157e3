// Package calls has the filter of system calls of instances: the rules, as a program of the kernel
// and as the filter of a runtime of OCI.
package calls

import (
	"slices"
	"sync"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused are the system calls that no service needs, by the kind of the profile that containers
// have by default. A kernel or an architecture may lack some of them.
var refused = []string{
	// The machine: clocks, modules, kernels, power, accounting.
	"acct", "adjtimex", "clock_adjtime", "clock_adjtime64", "clock_settime", "clock_settime64",
	"create_module", "delete_module", "finit_module", "get_kernel_syms", "init_module",
	"ioperm", "iopl", "kexec_file_load", "kexec_load", "lookup_dcookie", "modify_ldt", "nfsservctl",
	"query_module", "quotactl", "quotactl_fd", "reboot", "settimeofday", "stime", "swapoff", "swapon",
	"_sysctl", "sysfs", "syslog", "uselib", "ustat", "vhangup", "vm86", "vm86old",
	// Mounts and namespaces.
	"chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount",
	"open_by_handle_at", "open_tree", "open_tree_attr", "pivot_root", "setns", "umount", "umount2",
	// Large interfaces of the kernel with a history of holes, and keys that outlive an instance.
	"add_key", "bpf", "fanotify_init", "io_uring_enter", "io_uring_register", "io_uring_setup",
	"kcmp", "keyctl", "memfd_secret", "perf_event_open", "request_key", "userfaultfd",
}

// namespaces are the flags of clone and unshare that make a namespace.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// families are the kinds of sockets that an instance may open. Programs ask AF_NETLINK for the
// addresses of the instance, and for its sockets.
var (
	families = []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	netlinks = []uint64{
		unix.NETLINK_ROUTE, unix.NETLINK_SOCK_DIAG, unix.NETLINK_KOBJECT_UEVENT,
	}
)

// refusing returns an action that answers a system call with an error.
func refusing(e unix.Errno) seccomp.Action {
	return seccomp.Action(unix.SECCOMP_RET_ERRNO | uint32(e))
}

// policy returns the rules of the filter for an architecture.
func policy(a *arch.Info) seccomp.Policy {
	known := func(name string) bool { _, ok := a.SyscallNames[name]; return ok }
	names := slices.DeleteFunc(slices.Clone(refused), func(s string) bool { return !known(s) })
	const flags, family, protocol = 0, 0, 2
	when := func(name string, c ...seccomp.Condition) seccomp.NameWithConditions {
		return seccomp.NameWithConditions{Name: name, Conditions: c}
	}
	var noFamily, noNetlink seccomp.ArgumentConditions
	for _, f := range families {
		noFamily = append(noFamily,
			seccomp.Condition{Argument: family, Operation: seccomp.NotEqual, Value: f})
	}
	noNetlink = append(noNetlink,
		seccomp.Condition{Argument: family, Operation: seccomp.Equal, Value: unix.AF_NETLINK})
	for _, p := range netlinks {
		noNetlink = append(noNetlink,
			seccomp.Condition{Argument: protocol, Operation: seccomp.NotEqual, Value: p})
	}
	makesOne := seccomp.Condition{Argument: flags, Operation: seccomp.BitsSet, Value: namespaces}
	return seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{
		{Action: refusing(unix.EPERM), Names: names, NamesWithCondtions: []seccomp.NameWithConditions{
			when("unshare", makesOne), when("clone", makesOne),
		}},
		{Action: refusing(unix.EAFNOSUPPORT), NamesWithCondtions: []seccomp.NameWithConditions{
			when("socket", noFamily...), when("socket", noNetlink...),
		}},
		// The flags of clone3 are in memory, which a filter cannot read. Libraries fall back to clone.
		{Action: refusing(unix.ENOSYS), Names: []string{"clone3"}},
	}}
}

// Filter is the program of the filter for this machine.
var Filter = sync.OnceValues(func() ([]bpf.RawInstruction, error) {
	a, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	p := policy(a)
	rules, err := p.Assemble()
	if err != nil {
		return nil, err
	}
	// The library allows every call of another architecture. Such a program runs on amd64 as 32-bit
	// code, with other numbers for its calls.
	const archOffset = 4
	foreign := []bpf.Instruction{
		bpf.LoadAbsolute{Off: archOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(a.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(refusing(unix.ENOSYS))},
	}
	return bpf.Assemble(append(foreign, rules...))
})
