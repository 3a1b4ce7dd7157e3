package front

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// hold keeps other programs of the host from a port, and the kernel from giving it to a client. It
// takes no packets: they never reach it. It ends with the agent, and the next agent holds the port.
type hold struct{ sockets []int }

// holdPort binds a port of both families, if it is free. A connection of a former program may still
// wait for its last packets there.
func holdPort(p pando.HostPort) *hold {
	kind := unix.SOCK_STREAM
	if p.Protocol == pando.UDP {
		kind = unix.SOCK_DGRAM
	}
	h := &hold{}
	for _, at := range []struct {
		family int
		addr   unix.Sockaddr
	}{
		{unix.AF_INET, &unix.SockaddrInet4{Port: int(p.Port)}},
		{unix.AF_INET6, &unix.SockaddrInet6{Port: int(p.Port)}},
	} {
		s, err := unix.Socket(at.family, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if at.family == unix.AF_INET6 {
			err = unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
		}
		if err == nil {
			err = unix.Bind(s, at.addr)
		}
		if err != nil {
			unix.Close(s)
			continue
		}
		h.sockets = append(h.sockets, s)
	}
	return h
}

func (h *hold) close() {
	if h == nil {
		return
	}
	for _, s := range h.sockets {
		unix.Close(s)
	}
	h.sockets = nil
}

// States of a socket in /proc/net: a listener of TCP, and an unconnected socket of UDP.
const (
	listens = "0A"
	waits   = "07"
)

// Owner returns the program of this host that takes packets at a port, and whether there is one. A
// socket of this process is none.
func Owner(p pando.HostPort) (owner string, taken bool) {
	state := listens
	if p.Protocol == pando.UDP {
		state = waits
	}
	for _, six := range []string{"", "6"} {
		f, err := os.Open("/proc/thread-self/net/" + string(p.Protocol) + six)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			inode := socketAt(lines.Text(), state, p.Port)
			if inode == "" {
				continue
			}
			name, own := holder(inode)
			if !own {
				f.Close()
				return name, true
			}
		}
		f.Close()
	}
	return "", false
}

// socketAt returns the inode of a line of /proc/net that is of a state and a port, else "".
func socketAt(line, state string, port uint16) string {
	words := strings.Fields(line)
	if len(words) < 10 || words[3] != state {
		return ""
	}
	_, text, _ := strings.Cut(words[1], ":")
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 2 || uint16(b[0])<<8|uint16(b[1]) != port {
		return ""
	}
	return words[9]
}

// holder returns the program that has a socket, by name and process. own: it is this one, or an
// agent of Pando, which holds ports for services.
func holder(inode string) (name string, own bool) {
	if _, err := strconv.Atoi(inode); err != nil {
		return "an unknown program", false
	}
	self := programOf(os.Getpid())
	processes, _ := filepath.Glob("/proc/[0-9]*/fd") // its only error is a bad pattern
	for _, dir := range processes {
		files, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, file := range files {
			to, err := os.Readlink(filepath.Join(dir, file.Name()))
			if err != nil || to != "socket:["+inode+"]" {
				continue
			}
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
			name = programOf(pid)
			return fmt.Sprintf("%s (process %d)", name, pid), name == self
		}
	}
	return "a program that this host cannot see", false
}

// programOf returns the name of a process.
func programOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "an ended program"
	}
	return strings.TrimSpace(string(b))
}
