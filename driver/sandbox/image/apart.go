package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/api/problem"
)

// UnpackRole is the argument before that of UnpackMain.
const UnpackRole = "unpack"

// Limits of the process that unpacks one layer.
const (
	unpackWaitMax = 30 * time.Minute
	unpackCPUMax  = 15 * 60   // seconds of processor time
	unpackMemMax  = 768 << 20 // bytes beyond what the process has at its start
	unpackNice    = 10
	reportMax     = 64 << 10
)

// Descriptors of that process.
const (
	lifeFD   = 0 // ends with the process that started it
	blobFD   = 3
	folderFD = 4
)

// report is the last word of that process.
type report struct {
	Bytes   int64    `json:"bytes,omitempty"`   // of the files
	Without []string `json:"without,omitempty"` // entries that it left out
	Owners  []uint32 `json:"owners,omitempty"`  // large ids of its files
	Code    string   `json:"code,omitempty"`    // of an error, as in package problem
	Error   string   `json:"error,omitempty"`
}

// unpackApart unpacks a layer into an empty folder by a process of its own.
func (s *Store) unpackApart(
	ctx context.Context, dir string, blob *os.File, t task,
) (report, error) {
	// A server without root's rights would lose at an exec those that it kept. It unpacks only what an
	// operator pulls; the agents unpack all images of services.
	if s.Unpack == nil || os.Geteuid() != 0 {
		return t.unpackTo(ctx, dir, blob)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if pando.Sleep(ctx, s.Clock, unpackWaitMax) == nil {
			cancel(fmt.Errorf("%w: it takes more than %s to unpack", pando.ErrTooLarge, unpackWaitMax))
		}
	}()
	folder, err := os.Open(dir)
	if err != nil {
		return report{}, err
	}
	defer folder.Close()
	word, err := json.Marshal(t)
	if err != nil {
		return report{}, err
	}
	c := exec.CommandContext(ctx, s.Unpack[0], append(s.Unpack[1:len(s.Unpack):len(s.Unpack)],
		string(word))...)
	c.ExtraFiles = []*os.File{blob, folder}
	c.Env, c.Dir = []string{}, "/"
	life, err := c.StdinPipe()
	if err != nil {
		return report{}, err
	}
	defer life.Close()
	var out, complaint bytes.Buffer
	c.Stdout, c.Stderr = &capped{&out, reportMax}, &capped{&complaint, reportMax}
	err = c.Run()
	var r report
	if json.Unmarshal(out.Bytes(), &r) == nil && out.Len() > 0 {
		if r.Error != "" {
			return report{}, problem.Error(r.Code, r.Error)
		}
		return r, err
	}
	return report{}, unpackDied(ctx, c.ProcessState, complaint.String(), err)
}

// unpackDied returns why the process ended without a report.
func unpackDied(ctx context.Context, st *os.ProcessState, complaint string, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	first, _, _ := strings.Cut(strings.TrimSpace(complaint), "\n")
	if strings.Contains(first, "out of memory") || strings.Contains(first, "cannot allocate memory") {
		return fmt.Errorf("%w: it needs more than %d MiB of memory to unpack", pando.ErrTooLarge,
			unpackMemMax>>20)
	}
	if st != nil {
		ws, ok := st.Sys().(syscall.WaitStatus)
		if ok && ws.Signaled() && (ws.Signal() == unix.SIGXCPU || ws.Signal() == unix.SIGKILL) {
			return fmt.Errorf("%w: it needs more than %d minutes of processor time to unpack",
				pando.ErrTooLarge, unpackCPUMax/60)
		}
	}
	return fmt.Errorf("the process that unpacks it ended: %w: %s", err, first)
}

// capped keeps the beginning of what is written, and drops the rest.
type capped struct {
	w    io.Writer
	left int
}

func (c *capped) Write(p []byte) (int, error) {
	keep := p[:min(len(p), c.left)]
	c.left -= len(keep)
	if _, err := c.w.Write(keep); err != nil {
		return 0, err
	}
	return len(p), nil
}

// UnpackMain unpacks one layer. Its argument is a task. It sees nothing but the blob and the folder
// of the layer, which is its root.
func UnpackMain(args []string) int {
	var t task
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &t) != nil {
		fmt.Fprintln(os.Stderr, "pando unpack is started by a store of images only")
		return 2
	}
	go func() { // its parent is gone
		_, _ = io.Copy(io.Discard, os.NewFile(lifeFD, "life"))
		os.Exit(1)
	}()
	var r report
	err := confine(t)
	if err == nil {
		r, err = t.unpackTo(context.Background(), "/", os.NewFile(blobFD, "blob"))
	}
	if err = noSpace(err); err != nil {
		r = report{Error: err.Error()[:min(len(err.Error()), reportMax/8)]}
		if kind, ok := problem.Of(err); ok {
			r.Code = kind.Code
		}
	}
	if json.NewEncoder(os.Stdout).Encode(r) != nil {
		return 1
	}
	return 0
}

// confine sets the limits of this process.
func confine(t task) error {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("limit the unpacking of a layer: %w", err)
	}
	pages, _, _ := strings.Cut(string(text), " ")
	size, err := strconv.ParseUint(pages, 10, 64)
	if err != nil {
		return fmt.Errorf("limit the unpacking of a layer: %w", err)
	}
	debug.SetMemoryLimit(unpackMemMax / 2)
	limits := map[int]uint64{
		unix.RLIMIT_AS: size*uint64(os.Getpagesize()) + unpackMemMax, unix.RLIMIT_CPU: unpackCPUMax,
		unix.RLIMIT_FSIZE: uint64(max(t.Bytes, 0)), unix.RLIMIT_CORE: 0,
	}
	for what, n := range limits {
		err = errors.Join(err, unix.Setrlimit(what, &unix.Rlimit{Cur: n, Max: n}))
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, unpackNice) // slower than the programs of the host
	err = errors.Join(err, unix.Fchdir(folderFD), unix.Chroot("."), unix.Chdir("/"))
	if err != nil {
		return fmt.Errorf("limit the unpacking of a layer: %w", err)
	}
	return nil
}

// layerError is the refusal of a layer for its content: another attempt ends alike.
type layerError struct{ error }

func (e layerError) Unwrap() error { return e.error }

// ofContent reports whether the unpacking of a layer failed for its content.
func ofContent(err error) bool {
	return errors.Is(err, pando.ErrForbidden) || errors.Is(err, pando.ErrTooLarge) ||
		errors.Is(err, pando.ErrInvalid)
}

// Bounds of the memory of refused layers.
const (
	refusalsMax = 1024
	refusedFor  = 10 * time.Minute
)

// refusals remembers layers that were refused: an instance that starts again and again must not
// unpack the same hostile layer each time. An image may claim any digest for the files of a blob, so
// the blob counts as well.
type refusals struct {
	mu  sync.Mutex
	all map[[2]string]refusal
}

type refusal struct {
	err error
	at  time.Time
}

func (r *refusals) add(blob, files v1.Hash, err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil || len(r.all) >= refusalsMax {
		r.all = map[[2]string]refusal{}
	}
	r.all[[2]string{blob.Hex, files.Hex}] = refusal{err, now}
}

func (r *refusals) of(blob, files v1.Hash, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, ok := r.all[[2]string{blob.Hex, files.Hex}]
	if ok && now.Sub(old.at) < refusedFor {
		return old.err
	}
	return nil
}
