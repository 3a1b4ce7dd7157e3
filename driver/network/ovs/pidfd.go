package ovs

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// endMax bounds the end of a daemon.
const endMax = 10 * time.Second

// handle is a process that may end.
type handle int

func pidfd(pid int) (handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	return handle(fd), err
}

// await waits until the process has ended.
func (h handle) await(most time.Duration) error {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(h), Events: unix.POLLIN}}, int(most.Milliseconds()))
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: the process runs on after %s", pando.ErrNotReady, most)
	}
	return err
}

// Close closes the handle.
func (h handle) Close() error { return unix.Close(int(h)) }
