package shim

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
	"pando.run/pando/driver/sandbox/process/wire"
)

// gate keeps a loaded program before its first instruction. The driver releases it with the message
// "go" on the connection that loaded it. Until then the program has had no visible effect. Without
// the message it ends there.
type gate struct {
	s     *shim
	c     *net.UnixConn
	told  chan struct{} // closed once the driver has the reply to its load
	open  chan bool     // receives the result of wait
	out   *os.File      // the program's output
	ended <-chan unix.WaitStatus
}

// wait reports whether to start the program. The thread that traces the program calls it and
// blocks. The kernel wakes this thread with the message, so no other thread has to run before the
// program does.
func (g *gate) wait() bool {
	<-g.told
	var q wire.Request
	raw, err := g.c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { awaitInput(int32(fd)) })
	}
	if err == nil {
		_, err = wire.Receive(g.c, &q)
	}
	g.s.mu.Lock()
	goes := err == nil && q.Verb == "go" && !g.s.barred
	g.s.loaded = !goes
	g.s.mu.Unlock()
	g.open <- goes
	return goes
}

func awaitInput(fd int32) {
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: fd, Events: unix.POLLIN}}, -1); err != unix.EINTR {
			return
		}
	}
}
