package main

import (
	"fmt"
	"log"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// The log of a daemon rotates as those of instances do: "agent.log" is the newest, "agent.log.1" the one before.
const (
	daemonLogBytesMax = 10 << 20
	daemonLogsKept    = 3
)

// daemonFile is the log file of this process, which is also its standard output and error: a crash ends in it.
type daemonFile struct {
	mu   sync.Mutex
	path string
	most int64 // bytes, then it rotates
	fds  []int // that are the file
}

// rotateLog makes the log of a daemon rotate, if `pando up` gave it one: a daemon on a terminal has none.
func rotateLog(p place, role string) {
	own, err := os.Stderr.Stat()
	if err != nil {
		return
	}
	if file, err := os.Stat(daemonLog(p, role)); err == nil && os.SameFile(own, file) {
		log.SetOutput(&daemonFile{path: daemonLog(p, role), most: daemonLogBytesMax, fds: []int{unix.Stderr, unix.Stdout}})
	}
}

// Write implements io.Writer.
func (d *daemonFile) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var is unix.Stat_t
	if err := unix.Fstat(d.fds[0], &is); err == nil && is.Size > 0 && is.Size+int64(len(b)) > d.most {
		d.rotate()
	}
	return unix.Write(d.fds[0], b)
}

// rotate begins a new file. If that fails, the file at hand grows: a line is worth more than its bound.
func (d *daemonFile) rotate() {
	name := func(n int) string {
		if n == 0 {
			return d.path
		}
		return fmt.Sprintf("%s.%d", d.path, n)
	}
	fresh, err := os.OpenFile(d.path+".new", os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o640)
	if err != nil {
		return
	}
	defer fresh.Close()
	for n := daemonLogsKept - 1; n > 0; n-- {
		_ = os.Rename(name(n-1), name(n)) // the older ones may not be there yet
	}
	if os.Rename(d.path+".new", d.path) != nil {
		return
	}
	for _, fd := range d.fds {
		_ = unix.Dup3(int(fresh.Fd()), fd, 0) // both are open
	}
}
