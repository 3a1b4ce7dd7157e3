// Package criu freezes the processes of a sandbox with CRIU, and starts them again from the files.
//
// CRIU runs inside the namespaces of the sandbox, so it takes the program for a process of its own
// machine. It neither writes nor makes namespaces, mounts and cgroups: the sandbox has them. The
// program's parent is the sandbox's shim, before and after.
//
// A file of CRIU decides nothing about the rights of a process: see rights.go.
//
// It never decides which program is frozen, and it keeps no files.
package criu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

var _ pando.Freezer = Tool{}

// Tool is an unpacked CRIU: its program, its C library and its loader, apart from the system's.
type Tool struct {
	Root string
	// Cache is a folder that only root enters. It has CRIU's facts about the running kernel. "": each
	// CRIU finds them out again, which takes 40 ms.
	Cache string
}

// Files of an unpacked CRIU.
const (
	loader    = "usr/lib64/ld-linux-x86-64.so.2"
	libraries = "usr/lib/x86_64-linux-gnu"
	program   = "usr/sbin/criu"
)

// Home is the folder where an operator unpacks CRIU.
const Home = "/usr/local/lib/pando/criu"

// Find returns the CRIU of the first of some folders that has one, else that of Home. It skips
// empty names.
func Find(folders ...string) Tool {
	for _, dir := range folders {
		if t := (Tool{Root: dir}); dir != "" && t.Missing() == nil {
			return t
		}
	}
	return Tool{Root: Home}
}

// Missing implements pando.Freezer.
func (t Tool) Missing() error {
	for _, name := range []string{loader, libraries, program} {
		if _, err := os.Stat(filepath.Join(t.Root, name)); err != nil {
			return fmt.Errorf("%w: this host has no CRIU in %s; `pando doctor` prints how to get it",
				pando.ErrUnsupported, t.Root)
		}
	}
	return nil
}

// Numbers of the descriptors of a CRIU, by their place in its files.
const (
	loaderFD = 3 + iota
	librariesFD
	programFD
	imagesFD
	logFD
	outputFD
)

func fd(n int) string { return "/proc/self/fd/" + strconv.Itoa(n) }

// common are the arguments of both directions. Pando sets cgroups itself. The connections of the
// program stay with it, so no packet needs to wait.
var common = []string{"-D", fd(imagesFD), "-W", fd(logFD), "-o", "log", "-v3",
	"--manage-cgroups=ignore", "--network-lock", "skip", "--file-locks"}

// Freeze implements pando.Freezer.
func (t Tool) Freeze(ctx context.Context, f pando.Frozen) error {
	args := append([]string{"dump", "-t", strconv.Itoa(f.PID), "--leave-running",
		"--tcp-established", "--unprivileged"}, common...)
	if err := t.run(ctx, f, nil, args); err != nil {
		return fmt.Errorf("freeze the program: %w", err)
	}
	// A program that no host would thaw is refused now.
	if err := check(f); err != nil {
		return fmt.Errorf("freeze the program: %w", err)
	}
	return nil
}

// Thaw implements pando.Freezer.
func (t Tool) Thaw(ctx context.Context, f pando.Frozen) error {
	if err := check(f); err != nil {
		return fmt.Errorf("thaw the program: %w", err)
	}
	connections := "--tcp-close"
	if f.Connections {
		connections = "--tcp-established"
	}
	args := append([]string{"restore", "--restore-detached", connections}, common...)
	output, err := unix.Dup(int(f.Output))
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(output), "output")
	defer out.Close()
	args = append(args, "--inherit-fd", fmt.Sprintf("fd[%d]:pipe:[%d]", outputFD, f.Pipe))
	if err := t.run(ctx, f, out, args); err != nil {
		return fmt.Errorf("thaw the program: %w", err)
	}
	return nil
}

// run runs CRIU inside the namespaces of a sandbox and waits for its end.
func (t Tool) run(ctx context.Context, f pando.Frozen, output *os.File, args []string) error {
	if err := t.Missing(); err != nil {
		return err
	}
	work, err := os.MkdirTemp(scratch(), "pando-criu-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o700); err != nil {
		return err
	}
	files, err := t.open(f.Dir, work)
	defer closeAll(files)
	if err != nil {
		return err
	}
	if output != nil {
		files = append(files, output)
	}
	e := entrance{inside: f.Inside, uid: int(f.UID), gid: int(f.GID)}
	facts, ok := t.known(f, args[0], work), false
	defer func() { facts.keep(ok, e.uid) }()
	if output != nil { // the program stays in the groups of CRIU, and only root makes its user
		e = entrance{inside: f.Inside, groups: f.Groups, entry: f.Entry}
	}
	child, err := e.start(append([]string{"criu", "--library-path", fd(librariesFD), fd(programFD)},
		args...), files)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = unix.Kill(child, unix.SIGKILL) })
	defer stop()
	var status syscall.WaitStatus
	for {
		_, err = syscall.Wait4(child, &status, 0, nil)
		if err != syscall.EINTR {
			break
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("wait for CRIU: %w", err)
	case ctx.Err() != nil:
		return ctx.Err()
	case !status.Exited() || status.ExitStatus() != 0:
		return cause(work)
	}
	ok = true
	return nil
}

// known gives a CRIU the facts about the kernel. Its user decides where it looks for them. Without
// the folder it finds them out again.
func (t Tool) known(f pando.Frozen, direction, work string) *facts {
	in, err := os.Open(work)
	if direction == "restore" {
		in.Close()
		in, err = runFolder(f.Inside)
	}
	if err != nil {
		return nil
	}
	return t.factsFor(direction, in)
}

// open opens the files of a CRIU in the order of their numbers, after its standard ones.
func (t Tool) open(images, work string) (files []*os.File, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	said, err := os.OpenFile(filepath.Join(work, "said"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		null.Close()
		return nil, err
	}
	files = []*os.File{null, said, said}
	for _, path := range []string{filepath.Join(t.Root, loader), filepath.Join(t.Root, libraries),
		filepath.Join(t.Root, program), images, work} {
		f, err := os.OpenFile(path, unix.O_PATH, 0)
		if err != nil {
			return files, fmt.Errorf("open %s: %w", path, err)
		}
		files = append(files, f)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// failure is a line of the log with an error: the place in the source, and the text.
var failure = regexp.MustCompile(`Error \([^)]*\): (.*)`)

// known are common errors of CRIU with their meanings.
var known = []struct{ text, means string }{
	{"external socket is used", "it holds a connection to a process outside its sandbox, such as " +
		"one to its own PANDO_SOCKET; close it on the event `snapshot`"},
	{"Unsupported socket", "it has a socket of a kind that cannot be stored"},
	{"Can't dump ghost file", "it holds a deleted file that is too large"},
	{"inotify", "it watches files that have no path inside its sandbox"},
	{"io_uring", "it uses io_uring, which cannot be stored"},
	{"Can't bind inet socket", "it listens on an address that this instance does not have; let it " +
		"listen on 0.0.0.0"},
}

// cause returns the first error of CRIU's log, with its meaning if it is a known one.
func cause(work string) error {
	log, err := os.ReadFile(filepath.Join(work, "log"))
	if err != nil {
		log, _ = os.ReadFile(filepath.Join(work, "said"))
	}
	var lines []string
	for _, m := range failure.FindAllSubmatch(log, -1) {
		line := string(bytes.TrimSpace(m[1]))
		for _, k := range known {
			if strings.Contains(line, k.text) {
				return fmt.Errorf("%w: %s (%s)", pando.ErrRefused, k.means, line)
			}
		}
		if !strings.HasPrefix(line, "tun: ") { // it looks for a device that no sandbox has
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		lines = []string{strings.TrimSpace(string(log[max(0, len(log)-300):]))}
	}
	return errors.New("CRIU: " + strings.Join(lines[:min(3, len(lines))], "; "))
}
