package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func users() map[string]string {
	groups, _ := os.Getgroups()
	file := "/tmp/.owned"
	_ = os.WriteFile(file, nil, 0o600)
	defer os.Remove(file)
	chown := func(uid int) string { return text(os.Lchown(file, uid, uid)) }
	out := map[string]string{
		"uid": fmt.Sprint(os.Getuid()), "gid": fmt.Sprint(os.Getgid()), "groups": fmt.Sprint(groups),
		"chown 1000": chown(1000), "chown 65534": chown(65534), "chown 70000": chown(70000),
		"setuid 1000":        becomes(unix.SYS_SETUID, 1000),
		"setuid 70000":       becomes(unix.SYS_SETUID, 70000),
		"chown 1000620000":   chown(1_000_620_000),
		"setuid 1000620000":  becomes(unix.SYS_SETUID, 1_000_620_000),
		"large owner":        stat("/srv/directory"),
		"larger owner":       stat("/srv/project"),
		"reads large":        read("/srv/directory"),
		"reads larger":       read("/srv/project"),
		"setgroups":          text(unix.Setgroups(groups)),
		"passwd":             stat("/etc/passwd"),
		"root folder":        stat("/"),
		"set-uid mode stays": setsMode(file),
		"no new privileges":  status("NoNewPrivs"),
		"first id outside":   fmt.Sprint(strings.Fields(read("/proc/self/uid_map") + " 0 0")[1] == "0"),
	}
	return out
}

func setsMode(file string) string {
	if err := unix.Chmod(file, 0o4755); err != nil {
		return text(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return text(err)
	}
	return fmt.Sprint(info.Mode()&os.ModeSetuid != 0)
}

// becomes tries a raw call that changes the user of this thread, in a child of its own.
func becomes(call, id uintptr) string {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return text(e)
	}
	if pid == 0 {
		_, _, e := unix.RawSyscall(call, id, 0, 0)
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(e), 0, 0)
		}
	}
	var status unix.WaitStatus
	_, err := unix.Wait4(int(pid), &status, 0, nil)
	if err != nil {
		return text(err)
	}
	if status.ExitStatus() == 0 {
		return "ok"
	}
	return text(unix.Errno(status.ExitStatus()))
}

func limits() map[string]string {
	out := map[string]string{}
	for name, n := range map[string]int{"open files": unix.RLIMIT_NOFILE, "core": unix.RLIMIT_CORE,
		"stack": unix.RLIMIT_STACK, "address space": unix.RLIMIT_AS, "file size": unix.RLIMIT_FSIZE,
		"data": unix.RLIMIT_DATA, "cpu": unix.RLIMIT_CPU, "locked memory": unix.RLIMIT_MEMLOCK,
		"nice": unix.RLIMIT_NICE, "real time": unix.RLIMIT_RTPRIO,
		"message queues": unix.RLIMIT_MSGQUEUE} {
		var l unix.Rlimit
		_ = unix.Prlimit(0, n, nil, &l)
		if name == "open files" {
			l.Cur = l.Max // Go has raised its own
		}
		out[name] = strconv.FormatUint(l.Cur, 10)
		if l.Cur == ^uint64(0) {
			out[name] = "unlimited"
		}
	}
	out["processors"] = status("Cpus_allowed_list")
	return out
}

var capabilityNames = map[int]string{0: "chown", 1: "dac_override", 3: "fowner", 4: "fsetid", 5: "kill",
	6: "setgid", 7: "setuid", 8: "setpcap", 10: "net_bind_service", 13: "net_raw", 18: "sys_chroot",
	27: "mknod", 29: "audit_write", 31: "setfcap", 12: "net_admin", 21: "sys_admin", 19: "sys_ptrace"}

func capabilities() map[string]string {
	effective, _ := strconv.ParseUint(status("CapEff"), 16, 64)
	out := map[string]string{"ambient": status("CapAmb"), "inheritable": status("CapInh"),
		"filter": status("Seccomp")}
	for bit, name := range capabilityNames {
		out[name] = fmt.Sprint(effective>>bit&1 == 1)
	}
	return out
}

// calls tries system calls that a runtime may refuse. Each has arguments with which the kernel refuses
// it too, or that change this process alone.
func calls() map[string]string {
	out := map[string]string{}
	raw := func(name string, n uintptr, a ...uintptr) {
		a = append(a, 0, 0, 0, 0, 0, 0)
		r, _, e := unix.Syscall6(n, a[0], a[1], a[2], a[3], a[4], a[5])
		if out[name] = "ok"; e != 0 {
			out[name] = text(e)
		} else if r > 2 && strings.HasPrefix(name, "fd ") {
			unix.Close(int(r))
		}
	}
	path := func(s string) uintptr { return uintptr(unsafe.Pointer(&append([]byte(s), 0)[0])) }
	raw("mount", unix.SYS_MOUNT, path("none"), path("/none"), path("tmpfs"), 0, 0)
	raw("umount", unix.SYS_UMOUNT2, path("/none"), 0)
	raw("unshare users", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	raw("unshare network", unix.SYS_UNSHARE, unix.CLONE_NEWNET)
	raw("chroot", unix.SYS_CHROOT, path("/"))
	raw("keyctl", unix.SYS_KEYCTL, 0, ^uintptr(2), 0)
	raw("bpf", unix.SYS_BPF, 0, 0, 0)
	raw("perf_event_open", unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0)
	raw("io_uring_setup", unix.SYS_IO_URING_SETUP, 0, 0)
	raw("fd userfaultfd", unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1)
	raw("clone3", unix.SYS_CLONE3, 0, 0)
	raw("settimeofday", unix.SYS_SETTIMEOFDAY, 0, 0)
	raw("reboot", unix.SYS_REBOOT, 0, 0, 0)
	raw("fd memfd_create", unix.SYS_MEMFD_CREATE, path("x"), 0)
	raw("mlock", unix.SYS_MLOCK, path("x"), 1)
	raw("syslog", unix.SYS_SYSLOG, 10, 0, 0)
	raw("setns", unix.SYS_SETNS, ^uintptr(0), 0)
	raw("fd inotify", unix.SYS_INOTIFY_INIT1, 0)
	raw("fd fanotify", unix.SYS_FANOTIFY_INIT, 0, 0)
	raw("fd pidfd_open", unix.SYS_PIDFD_OPEN, uintptr(os.Getpid()), 0)
	raw("membarrier", unix.SYS_MEMBARRIER, 0, 0, 0)
	raw("nice", unix.SYS_SETPRIORITY, 0, 0, ^uintptr(4))
	raw("mknod", unix.SYS_MKNODAT, ^uintptr(99), path("/tmp/.node"), unix.S_IFCHR|0o600, 0x103)
	os.Remove("/tmp/.node")
	raw("mkfifo", unix.SYS_MKNODAT, ^uintptr(99), path("/tmp/.fifo"), unix.S_IFIFO|0o600, 0)
	os.Remove("/tmp/.fifo")
	raw("personality", unix.SYS_PERSONALITY, 0xffffffff)
	raw("swapon", unix.SYS_SWAPON, path("/none"), 0)
	raw("acct", unix.SYS_ACCT, path("/none"))
	raw("quotactl", unix.SYS_QUOTACTL, 0, 0, 0, 0)
	raw("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, ^uintptr(99), path("/"), 0, 0, 0)
	raw("kcmp", unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(os.Getpid()), 0, 0, 0)
	raw("fd vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	raw("fd raw socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	raw("fd packet socket", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	raw("fd ping socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	raw("fd route netlink", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	raw("fd generic netlink", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC)
	raw("fd audit netlink", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT)
	raw("fd unix socket", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
	raw("fd IPv6 socket", unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_STREAM, 0)
	return out
}
