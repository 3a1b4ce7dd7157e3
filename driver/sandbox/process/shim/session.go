package shim

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/api/session"
	"pando.run/pando/driver/sandbox/process/wire"
)

// gone reports whether the caller hung up before done was closed. A full pipe to the command keeps
// listen from noticing it, so gone looks at the connection itself.
func gone(c *net.UnixConn, done <-chan struct{}) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	for {
		var got int16
		err := raw.Control(func(fd uintptr) {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			if n, err := unix.Poll(p, int(goneLook.Milliseconds())); err == nil && n > 0 {
				got = p[0].Revents
			}
		})
		select {
		case <-done:
			return false
		default:
		}
		if err != nil || got != 0 {
			return true
		}
	}
}

// goneLook is the time between two looks whether a session is over.
const goneLook = time.Second

// openTerminal makes a terminal of the sandbox's own and gives its inner end to a user.
func openTerminal(uid, gid int) (master, inner *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		inner, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err == nil {
		err = inner.Chown(uid, gid)
	}
	if err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), "terminal"), inner, nil
}

// beginVisit starts the command of a session.
func (s *shim) beginVisit(spec pando.SessionSpec) (*visit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program == nil || s.loaded || s.pid == 0 && !s.program.Idle || len(spec.Command) == 0 {
		return nil, fmt.Errorf("%w: nothing runs in the sandbox", pando.ErrNotFound)
	}
	p := *s.program
	p.Argv = spec.Command
	p.Env = slices.DeleteFunc(slices.Clone(p.Env),
		func(v string) bool { return strings.HasPrefix(v, "NOTIFY_SOCKET=") })
	v := &visit{outputs: map[session.Kind]*os.File{}}
	theirs, err := v.open(spec, p)
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	if err == nil {
		if spec.Terminal && spec.Term != "" {
			p.Env = append(p.Env, "TERM="+spec.Term)
		}
		var pid int
		pid, v.ended, err = s.launch(forking{
			program: p, stdin: theirs[0], stdio: theirs[1], stderr: theirs[2], terminal: spec.Terminal,
		})
		v.group = groupOf(pid)
	}
	if err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

// endSession kills the session that a command leads. A process that left it stays until the
// instance ends.
func (s *shim) endSession(pid int) {
	_ = unix.Kill(-pid, unix.SIGKILL)
	for _, one := range s.processes() {
		text, err := readBelow(s.proc, strconv.Itoa(one)+"/stat")
		if err != nil {
			continue
		}
		// The fields after the name: state, parent, group, session.
		fields := wire.SplitStat(string(text))
		if len(fields) < 4 || fields[3] != strconv.Itoa(pid) {
			continue
		}
		if one > 1 {
			_ = syscall.Kill(one, syscall.SIGKILL)
		}
	}
}

// processes lists the processes of the sandbox.
func (s *shim) processes() (out []int) {
	dir, err := openBelow(s.proc, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// visit runs a session on a connection until the command ends or the caller hangs up.
func (s *shim) visit(c *net.UnixConn, spec pando.SessionSpec) {
	v, err := s.beginVisit(spec)
	if err != nil {
		_ = wire.Send(c, wire.Reply{Error: err.Error()}, -1)
		return
	}
	defer v.close()
	if wire.Send(c, wire.Reply{}, -1) != nil {
		s.endSession(v.group)
		return
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		if gone(c, done) {
			s.endSession(v.group)
		}
	}()
	go v.listen(c)
	out := session.NewWriter(c)
	var wg sync.WaitGroup
	for kind, f := range v.outputs {
		wg.Go(func() { _, _ = io.Copy(out.Stream(kind), f) })
	}
	copied := make(chan struct{})
	go func() {
		wg.Wait()
		close(copied)
	}()
	status := <-v.ended
	select {
	case <-copied:
	case <-time.After(visitOutputMax): // a child holds its output open
	}
	end := session.End{Code: status.ExitStatus()}
	if status.Signaled() {
		end.Code = 128 + int(status.Signal())
	}
	_ = out.SendJSON(session.Exit, end) // the caller may be gone
	s.endSession(v.group)
}

// visit is a command that an operator runs in the sandbox.
type visit struct {
	group  int // of processes, and their session
	ended  <-chan unix.WaitStatus
	stdin  *os.File // of the shim: the other end is the command's
	master *os.File // of its terminal, or nil
	// outputs are read by the shim, each with the kind of its frames.
	outputs map[session.Kind]*os.File
}

func (v *visit) close() {
	if v.stdin != nil {
		v.stdin.Close()
	}
	for _, f := range v.outputs {
		f.Close()
	}
}

// listen carries out the frames of the caller. It ends with the connection.
func (v *visit) listen(c net.Conn) {
	for {
		kind, b, err := session.Read(c)
		if err != nil {
			return
		}
		switch kind {
		case session.Input:
			_, _ = v.stdin.Write(b) // a command may close its input
		case session.EOF:
			if v.master == nil {
				v.stdin.Close()
			} else {
				_, _ = v.stdin.Write([]byte{4}) // end of transmission
			}
		case session.Size:
			var w session.Window
			if json.Unmarshal(b, &w) == nil {
				v.resize(w)
			}
		case session.Signal:
			if sig := syscall.Signal(pando.SignalNumber(string(b))); sig != 0 {
				_ = unix.Kill(-v.group, sig) // it may have ended
			}
		}
	}
}

// open makes the files of a command: a terminal, or three pipes. theirs are the command's ends.
func (v *visit) open(spec pando.SessionSpec, p wire.Program) (theirs []*os.File, err error) {
	if spec.Terminal {
		master, inner, err := openTerminal(int(p.IDOutside(p.UID)), int(p.IDOutside(p.GID)))
		if err != nil {
			return nil, fmt.Errorf("open a terminal in the sandbox: %w", err)
		}
		v.master, v.stdin = master, master
		v.outputs[session.Output] = master
		v.resize(session.Window{Rows: spec.Rows, Columns: spec.Columns})
		return []*os.File{inner, inner, inner}, nil
	}
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs, v.stdin = append(theirs, in), stdin
	for _, kind := range []session.Kind{session.Output, session.Errors} {
		out, inner, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		theirs, v.outputs[kind] = append(theirs, inner), out
	}
	for _, f := range theirs { // the command may open them again, as /dev/stdout
		if err := f.Chown(int(p.IDOutside(p.UID)), int(p.IDOutside(p.GID))); err != nil {
			return theirs, err
		}
	}
	return theirs, nil
}

func (v *visit) resize(w session.Window) {
	if v.master == nil || w.Rows == 0 || w.Columns == 0 {
		return
	}
	raw, err := v.master.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { // a terminal of another size works
			_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ,
				&unix.Winsize{Row: w.Rows, Col: w.Columns})
		})
	}
}

// visitOutputMax is how long the end of a command waits for the rest of its output.
const visitOutputMax = time.Second
