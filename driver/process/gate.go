package process

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// gate keeps a program that is loaded before its first instruction, until the driver says go on the connection on which it had
// it loaded. Nothing has happened by then that anybody could notice; without a go the program ends there.
type gate struct {
	s     *shim
	c     *net.UnixConn
	told  chan struct{} // closed once the driver knows that the program is loaded
	open  chan bool     // takes what wait returns
	out   *os.File      // what the program prints
	ended <-chan unix.WaitStatus
}

// wait returns whether the program is to go. It is called by the thread that traces the program, and blocks that very thread:
// the kernel wakes it with the message, and nobody else has to run before the program does.
func (g *gate) wait() bool {
	<-g.told
	var q request
	raw, err := g.c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { awaitInput(int32(fd)) })
	}
	if err == nil {
		_, err = receive(g.c, &q)
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
