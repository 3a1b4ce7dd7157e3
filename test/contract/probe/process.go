package main

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func pids() map[string]string {
	sid, _ := unix.Getsid(0)
	exe, _ := os.Readlink("/proc/1/exe")
	init := os.Getpid() == 1
	return map[string]string{
		"is 1":                 fmt.Sprint(init),
		"parent":               fmt.Sprint(os.Getppid()),
		"leads its session":    fmt.Sprint(sid == os.Getpid()),
		"leads its group":      fmt.Sprint(unix.Getpgrp() == os.Getpid()),
		"command of 1":         strings.ReplaceAll(read("/proc/1/cmdline"), "\x00", " "),
		"program of 1":         exe,
		"processes":            fmt.Sprint(len(numbers(list("/proc")))),
		"namespace of 1":       fmt.Sprint(sameLink("/proc/1/ns/pid", "/proc/self/ns/pid")),
		"writes /proc/1/fd/1":  text(appendTo("/proc/1/fd/1")),
		"signal 0 to 1":        text(unix.Kill(1, 0)),
		"signal URG to 1":      text(unix.Kill(1, unix.SIGURG)),
		"root of 1":            text(second(os.Stat("/proc/1/root/etc/passwd"))),
		"environment of 1":     text(second(os.ReadFile("/proc/1/environ"))),
		"oom score adjustment": read("/proc/self/oom_score_adj"),
	}
}

// numbers returns the words that are numbers.
func numbers(words string) []string {
	return slices.DeleteFunc(strings.Fields(words), func(w string) bool {
		return strings.Trim(w, "0123456789") != ""
	})
}

func second[T any](_ T, err error) error { return err }

func sameLink(a, b string) bool {
	one, err := os.Readlink(a)
	two, _ := os.Readlink(b)
	return err == nil && one == two
}

func appendTo(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// public returns a set of signals without the two that C libraries keep for themselves: whoever has
// started the runtime may ignore them, and Podman passes that on.
func public(set string) string {
	n, err := strconv.ParseUint(set, 16, 64)
	if err != nil {
		return set
	}
	return fmt.Sprintf("%016x", n&^(1<<31|1<<32))
}

func signals() map[string]string {
	return map[string]string{
		"ignored": public(status("SigIgn")), "blocked": status("SigBlk"),
		"ignored of 1": public(statusOf("1", "SigIgn")), "blocked of 1": statusOf("1", "SigBlk"),
		"queue of 1": fmt.Sprint(status("SigQ") != ""), "umask": status("Umask"),
		"stop and continue": text(unix.Kill(os.Getpid(), unix.SIGCONT)),
	}
}

func stdio() map[string]string {
	out := map[string]string{}
	for n, name := range []string{"stdin", "stdout", "stderr"} {
		var st unix.Stat_t
		kind := "closed"
		if unix.Fstat(n, &st) == nil {
			kind = map[uint32]string{unix.S_IFIFO: "pipe", unix.S_IFCHR: "device", unix.S_IFREG: "file",
				unix.S_IFSOCK: "socket"}[st.Mode&unix.S_IFMT]
		}
		_, err := unix.IoctlGetTermios(n, unix.TCGETS)
		out[name] = kind
		out[name+" is a terminal"] = fmt.Sprint(err == nil)
	}
	n, err := os.Stdin.Read(make([]byte, 1))
	out["stdin ends"] = fmt.Sprint(n == 0 && err != nil)
	out["opens /dev/stdout"] = text(appendTo("/dev/stdout"))
	out["opens /dev/stderr"] = text(appendTo("/dev/stderr"))
	out["opens /dev/tty"] = text(appendTo("/dev/tty"))
	descriptors := strings.Fields(list("/proc/self/fd"))
	inherited := slices.DeleteFunc(descriptors, func(fd string) bool {
		at, err := os.Readlink("/proc/self/fd/" + fd)
		return len(fd) > 1 || err != nil || strings.HasPrefix(at, "anon_inode:") ||
			strings.HasPrefix(at, "/sys/") || strings.HasPrefix(at, "/proc/")
	})
	out["descriptors"] = strings.Join(inherited, " ")
	return out
}

func environment() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "TERM", "USER", "LANG", "TZ", "SHELL",
		"FROM_IMAGE", "LOGNAME", "PWD"} {
		v, ok := os.LookupEnv(name)
		if !ok {
			v = "unset"
		}
		out[name] = v
	}
	host, _ := os.Hostname()
	v, ok := os.LookupEnv("HOSTNAME")
	out["HOSTNAME"] = fmt.Sprintf("%t %t", ok, v == host)
	out["folder"], _ = os.Getwd()
	var others []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if _, known := out[name]; !known {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	out["others"] = strings.Join(others, " ")
	return out
}

func names() map[string]string {
	host, _ := os.Hostname()
	own, err := net.LookupHost(host)
	first := "none"
	for _, line := range strings.Split(read("/etc/hosts"), "\n") {
		if f := strings.Fields(line); len(f) > 1 && slices.Contains(f[1:], host) {
			first = f[0]
			break
		}
	}
	var servers, search int
	var options, domain string
	for _, line := range strings.Split(read("/etc/resolv.conf"), "\n") {
		f := strings.Fields(line)
		if len(f) > 0 && f[0] == "nameserver" {
			servers++
		} else if len(f) > 0 && f[0] == "search" {
			search++
			if domain = f[len(f)-1]; strings.HasSuffix(domain, ".pando") {
				domain = ""
			}
		} else if len(f) > 0 && f[0] == "options" {
			options = strings.Join(f[1:], " ")
		}
	}
	var u unix.Utsname
	_ = unix.Uname(&u)
	mtab, _ := os.Readlink("/etc/mtab")
	return map[string]string{
		"hostname file":           fmt.Sprint(read("/etc/hostname") == host),
		"own name is found":       fmt.Sprint(err == nil && len(own) > 0),
		"own name is own address": fmt.Sprint(slices.Contains(addresses(), first)),
		"localhost":               fmt.Sprint(strings.Contains(read("/etc/hosts"), "127.0.0.1")),
		"IPv6 localhost":          fmt.Sprint(strings.Contains(read("/etc/hosts"), "::1")),
		"name of the builder":     fmt.Sprint(strings.Contains(read("/etc/hosts"), "builder")),
		"options":                 options, "last domain": domain,
		"name servers": fmt.Sprint(servers), "search lines": fmt.Sprint(search),
		"domain": unix.ByteSliceToString(u.Domainname[:]), "mtab": mtab,
		"hosts": stat("/etc/hosts"), "resolv.conf": stat("/etc/resolv.conf"),
		"hostname mode": stat("/etc/hostname"), "writes hosts": text(appendTo("/etc/hosts")),
		"writes resolv.conf": text(appendTo("/etc/resolv.conf")),
		"sets the hostname":  text(unix.Sethostname([]byte(host))),
	}
}

// addresses returns the addresses of this machine but those of the loopback device.
func addresses() (out []string) {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() {
			out = append(out, n.IP.String())
		}
	}
	return out
}
