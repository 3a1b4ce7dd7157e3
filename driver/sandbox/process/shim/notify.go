package shim

import (
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// listenNotify receives the program's sd_notify(3) datagrams: READY=1 once, and STATUS=, which
// becomes a line of its log. It drops datagrams from outside the sandbox. It closes descriptors
// that arrive with one, because systemd-notify waits for that.
func (s *shim) listenNotify() {
	f := os.NewFile(notifyFD, "notify")
	if err := unix.SetsockoptInt(notifyFD, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return
	}
	p, err := net.FilePacketConn(f)
	if err != nil {
		return
	}
	c, ok := p.(*net.UnixConn)
	if !ok {
		return
	}
	b, oob := make([]byte, 4096), make([]byte, 512)
	for {
		n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
		if err != nil {
			return
		}
		if fromInside(oob[:oobn]) {
			s.notified(string(b[:n]))
		}
	}
}

// fromInside reports whether the sender has a number in the shim's pid namespace. It closes the
// descriptors that came with the message.
func fromInside(oob []byte) bool {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	inside := false
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
		if cred, err := unix.ParseUnixCredentials(&m); err == nil {
			inside = cred.Pid != 0
		}
	}
	return inside
}

func (s *shim) notified(text string) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch {
		case name == "READY" && value == "1":
			s.readyOnce.Do(func() { s.happened(pando.SandboxEvent{Kind: pando.SandboxNotified}) })
		case name == "STATUS":
			s.mu.Lock()
			log := s.log
			s.mu.Unlock()
			if log != nil {
				log.Write([]byte("status: " + value + "\n"))
			}
		}
	}
}
