package daemon

import (
	"fmt"
	"io"
	"log"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// The log of a daemon rotates like the log of an instance: "agent.log" is the newest file,
// "agent.log.1" the one before.
const (
	daemonLogBytesMax = 10 << 20
	daemonLogsKept    = 3
)

// daemonFile is the log file of this process. It is also the standard output and error, so that a
// crash is logged.
type daemonFile struct {
	mu   sync.Mutex
	path string
	most int64 // size in bytes at which the file rotates
	fds  []int // descriptors that refer to the file
}

// rotateLog makes the log of a daemon rotate if `pando up` started the daemon with a log file. A
// daemon on a terminal has no log file.
func rotateLog(p place, role string) {
	own, err := os.Stderr.Stat()
	if err != nil {
		return
	}
	if file, err := os.Stat(daemonLog(p, role)); err == nil && os.SameFile(own, file) {
		log.SetOutput(&daemonFile{
			path: daemonLog(p, role), most: daemonLogBytesMax, fds: []int{unix.Stderr, unix.Stdout},
		})
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
	for n := 0; ; {
		wrote, err := unix.Write(d.fds[0], b[n:]) // a disk that is nearly full takes a part
		if n += max(0, wrote); n == len(b) || err != nil && err != unix.EINTR {
			return n, err
		}
		if wrote == 0 {
			return n, io.ErrShortWrite
		}
	}
}

// rotate begins a new file. If that fails, the current file grows, because losing a line is worse
// than a file that is too long.
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
		_ = os.Rename(name(n-1), name(n)) // older files may not exist yet
	}
	if os.Rename(d.path+".new", d.path) != nil {
		return
	}
	for _, fd := range d.fds {
		_ = unix.Dup3(int(fresh.Fd()), fd, 0) // both are open
	}
}
