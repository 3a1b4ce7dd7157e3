package cli

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// dialMax bounds the connection to a socket whose listener does not answer.
const dialMax = time.Second

// ListenerOf names the process that listens at a socket, and its state if it is stopped. It returns
// "" if that is not known.
func ListenerOf(socket string) string {
	c, err := net.DialTimeout("unix", socket, dialMax)
	if err != nil {
		return ""
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ""
	}
	var peer *unix.Ucred
	failed := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if failed != nil || err != nil || peer.Pid == 0 {
		return ""
	}
	who := fmt.Sprintf("the %s behind %s (process %d)", roleOfProcess(peer.Pid), socket, peer.Pid)
	if isStopped(peer.Pid) {
		who += fmt.Sprintf(", which is stopped (`kill -CONT %d` continues it),", peer.Pid)
	}
	return who
}

// roleOfProcess returns the role of a daemon of pando, such as server.
func roleOfProcess(pid int32) string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if words := strings.Split(string(line), "\x00"); err == nil && len(words) > 1 {
		switch words[1] {
		case "server", "agent":
			return words[1]
		}
	}
	return "daemon"
}

// isStopped reports whether a signal has stopped a process, or a cgroup has frozen it.
func isStopped(pid int32) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	at := bytes.LastIndexByte(line, ')') // its name may have any characters
	return err == nil && at >= 0 && len(line) > at+2 && (line[at+2] == 'T' || line[at+2] == 't')
}
