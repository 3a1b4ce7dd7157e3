package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func devices() map[string]string {
	out := map[string]string{"all": list("/dev")}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "fd",
		"stdin", "stdout", "stderr", "shm", "mqueue", "pts", "console", "fuse", "kmsg", "mem", "net"} {
		out[name] = stat("/dev/" + name)
	}
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	out["opens a terminal"] = text(err)
	out["writes full"] = text(os.WriteFile("/dev/full", []byte("x"), 0))
	out["writes null"] = text(os.WriteFile("/dev/null", []byte("x"), 0))
	return out
}

// mounts returns the kinds and options of the mounts that every container has.
func mounts() map[string]string {
	out := map[string]string{}
	wanted := []string{"/", "/proc", "/sys", "/dev", "/dev/shm", "/dev/pts", "/dev/mqueue",
		"/sys/fs/cgroup", "/data", "/keep"}
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return map[string]string{"all": text(err)}
	}
	defer f.Close()
	times := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		w := strings.Fields(lines.Text())
		if len(w) < 4 || !slices.Contains(wanted, w[1]) {
			continue
		}
		times[w[1]]++
		kind := w[2]
		if w[1] == "/data" || w[1] == "/keep" {
			kind = "a file system"
		}
		var options []string
		for _, o := range strings.Split(w[3], ",") {
			if slices.Contains([]string{"ro", "rw", "nosuid", "nodev", "noexec"}, o) {
				options = append(options, o)
			}
		}
		slices.Sort(options)
		out[w[1]] = kind + " " + strings.Join(options, ",")
	}
	for _, at := range wanted {
		if times[at] != 1 {
			out[at] = fmt.Sprintf("%d mounts: %s", times[at], out[at])
		}
	}
	return out
}

func places() map[string]string {
	out := map[string]string{}
	for _, dir := range []string{"/", "/etc", "/tmp", "/var/tmp", "/run", "/run/lock", "/usr", "/opt",
		"/home", "/root", "/var/lib", "/var/log", "/dev", "/dev/shm", "/proc", "/proc/sys/kernel",
		"/sys", "/sys/fs/cgroup"} {
		out["writes "+dir] = writable(dir)
		out["mode of "+dir] = stat(dir)
	}
	return out
}

func volumes() map[string]string {
	return map[string]string{
		"of the image": stat("/data"), "its file": read("/data/seed"), "owner of its file": stat("/data/seed"),
		"writes that of the image": writable("/data"), "link in it": stat("/data/link"),
		"named": stat("/keep"), "file of the named one": read("/keep/seed"),
		"writes the named one": writable("/keep"), "new file": newFile("/keep"),
		"sub folder": stat("/keep/sub"), "writes the sub folder": writable("/keep/sub"),
	}
}

func newFile(dir string) string {
	file := dir + "/.new"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return text(err)
	}
	defer os.Remove(file)
	return stat(file)
}

func kernel() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kmsg",
		"/proc/sysrq-trigger", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/acpi",
		"/sys/firmware", "/sys/kernel/security", "/sys/fs/bpf", "/sys/class/net"} {
		f, err := os.Open(name)
		if err == nil {
			n, _ := f.Readdirnames(-1)
			b := make([]byte, 1)
			m, _ := f.ReadAt(b, 0)
			f.Close()
			out["reads "+name] = fmt.Sprint(len(n) > 0 || m > 0)
			continue
		}
		out["reads "+name] = text(err)
	}
	for _, name := range []string{"kernel/hostname", "kernel/panic", "vm/swappiness",
		"net/ipv4/ip_forward", "net/core/somaxconn"} {
		f, err := os.OpenFile("/proc/sys/"+name, os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		out["writes "+name] = text(err)
	}
	for _, name := range []string{"net/core/somaxconn", "kernel/shmmax", "fs/mqueue/msg_max"} {
		out["value of "+name] = read("/proc/sys/" + name)
	}
	out["ports of root"] = read("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	out["groups that ping"] = strings.Join(strings.Fields(read("/proc/sys/net/ipv4/ping_group_range")), " ")
	out["reads its maps"] = fmt.Sprint(len(read("/proc/self/maps")) > 100)
	out["zone"] = stat("/etc/localtime")
	return out
}

func network() map[string]string {
	out := map[string]string{}
	all, _ := net.Interfaces()
	var links []string
	for _, l := range all {
		links = append(links, l.Name)
		addresses, _ := l.Addrs()
		four, six := 0, 0
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
				four++
			} else if ok && !n.IP.IsLinkLocalUnicast() {
				six++
			}
		}
		out["IPv4 of "+l.Name] = fmt.Sprint(four > 0)
		out["IPv6 of "+l.Name] = fmt.Sprint(six > 0)
		out["up "+l.Name] = fmt.Sprint(l.Flags&net.FlagUp != 0)
		if l.Name != "lo" {
			out["MTU"] = fmt.Sprint(l.MTU)
		}
	}
	out["links"] = strings.Join(links, " ")
	l, err := net.Listen("tcp", ":80")
	if err == nil {
		l.Close()
	}
	out["listens at 80"] = text(err)
	for _, at := range append([]string{"127.0.0.1", "::1"}, addresses()[:min(1, len(addresses()))]...) {
		name := at
		if at != "127.0.0.1" && at != "::1" {
			name = "the own address"
		}
		out["reaches "+name] = reaches(at)
	}
	lines := strings.Split(read("/proc/net/route"), "\n")
	out["default route"] = fmt.Sprint(slices.ContainsFunc(lines, func(line string) bool {
		w := strings.Fields(line)
		return len(w) > 1 && w[1] == "00000000"
	}))
	return out
}

func reaches(at string) string {
	l, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
	if err != nil {
		return text(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return text(err)
	}
	return text(c.Close())
}

func cgroups() map[string]string {
	paths := map[string]bool{}
	for _, line := range strings.Split(read("/proc/self/cgroup"), "\n") {
		if w := strings.SplitN(line, ":", 3); len(w) == 3 {
			paths[w[2]] = true
		}
	}
	first := func(names ...string) string {
		for _, name := range names {
			if b, err := os.ReadFile(name); err == nil {
				return strings.TrimSpace(string(b))
			}
		}
		return "none"
	}
	const at = "/sys/fs/cgroup/"
	var fs unix.Statfs_t
	err := unix.Statfs(at, &fs)
	return map[string]string{
		"own path is the root": fmt.Sprint(len(paths) == 1 && paths["/"]),
		"memory limit":         first(at+"memory.max", at+"memory/memory.limit_in_bytes"),
		"process limit":        first(at+"pids.max", at+"pids/pids.max"),
		"shown":                text(err),
		"writes":               text(os.Mkdir(at+"memory/own", 0o755)),
		"neighbours": fmt.Sprint(strings.Contains(list(at+"memory"), "pando") ||
			strings.Contains(list(at+"memory"), "libpod")),
		"own processes": fmt.Sprint(strings.HasPrefix(first(at+"cgroup.procs", at+"memory/cgroup.procs"), "1")),
	}
}
