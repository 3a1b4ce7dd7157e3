package process

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
	"pando.run/pando/driver/network/sockets"
	"pando.run/pando/driver/sandbox/process/wire"
)

// Attempts to stop a program between two handshakes. A client in the middle of one has no socket
// that could move.
const (
	quietTries = 50
	quietWait  = 2 * time.Millisecond
)

// Leave implements pando.Sandbox.
func (b *sandbox) Leave(ctx context.Context, w io.Writer, stopping func() error) error {
	p, err := b.movable(ctx)
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	if err := writeFrozen(out, stored{Program: *p, Machine: machine()}); err != nil {
		return fmt.Errorf("send the program: %w", err)
	}
	dir, err := movingDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	was, err := b.sendMemory(out)
	if err != nil {
		return fmt.Errorf("send the program: %w", err)
	}
	defer was.close()
	if err := stopping(); err != nil {
		return err
	}
	if err = b.stopQuietly(ctx); err == nil {
		err = b.writeProgram(ctx, out, *p, dir, was)
	}
	if err != nil {
		err = errors.Join(err, b.Resume(context.WithoutCancel(ctx)))
	}
	return err
}

// movable returns the program if it can move.
func (b *sandbox) movable(ctx context.Context) (*wire.Frozen, error) {
	if b.d.Freezer == nil || b.d.Seal == nil {
		return nil, fmt.Errorf("%w: this host has no CRIU", pando.ErrUnsupported)
	}
	if err := b.d.Freezer.Missing(); err != nil {
		return nil, err
	}
	r, err := b.askSoon(ctx, wire.Request{Verb: "describe"})
	if err == nil {
		err = freezable(r.Frozen, b.slot.Spec)
	}
	if err == nil {
		_, err = b.isQuiet()
	}
	return r.Frozen, err
}

// sendMemory sends the memory of the program while it runs.
func (b *sandbox) sendMemory(out *tar.Writer) (*base, error) {
	pids, err := b.slot.cgroup.Processes()
	if err != nil {
		return nil, err
	}
	dir, err := movingDir()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == b.slot.PID }) // the shim
	return sendBase(out, pids, dir)
}

// writeProgram writes the stopped program.
func (b *sandbox) writeProgram(
	ctx context.Context, out *tar.Writer, p wire.Frozen, dir string, was *base,
) error {
	of, err := b.slot.frozen(p, dir)
	if err == nil {
		err = b.d.Freezer.Freeze(ctx, of)
	}
	if err == nil {
		err = packPrivate(b.slot.root(), dir)
	}
	if err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	images, _ := filepath.Glob(filepath.Join(dir, pagesFiles))
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		switch {
		case err != nil:
		case slices.Contains(images, path):
			err = was.sendDelta(out, path, len(images) == 1)
		default:
			err = sendFile(out, path)
		}
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		return fmt.Errorf("send the program: %w", err)
	}
	return nil
}

// stopQuietly stops the program at a moment without a handshake, and seals its network.
func (b *sandbox) stopQuietly(ctx context.Context) error {
	for n := 0; ; n++ {
		err := b.Pause(ctx)
		if err == nil {
			err = b.seal()
		}
		if err != nil {
			return err
		}
		calm, err := b.isQuiet()
		if calm || err != nil {
			return err
		}
		if err := b.Resume(ctx); err != nil {
			return err
		}
		if n == quietTries {
			return fmt.Errorf("%w: at each of %d attempts a client was in the middle of a handshake",
				pando.ErrConflict, quietTries)
		}
		if err := pando.Sleep(ctx, b.d.Clock, quietWait); err != nil {
			return err
		}
	}
}

// isQuiet reports whether no connection waits for its handshake or for the program's accept. It
// refuses connections that cannot move: they are bound to an address of this host.
func (b *sandbox) isQuiet() (calm bool, err error) {
	calm = true
	err = netspace.At(b.slot.netns(), func() error {
		tcp, err := sockets.TCP()
		if err != nil {
			return err
		}
		udp, err := sockets.UDP()
		if err != nil {
			return err
		}
		for n, s := range append(tcp, udp...) {
			if at := s.Local.Addr(); !steered(at) && !at.IsLoopback() {
				return fmt.Errorf("%w: it has a connection between its own address and %s; close it on "+
					"the event `snapshot`", pando.ErrRefused, s.Remote)
			}
			if n < len(tcp) && !s.Accepted() {
				calm = false
			}
		}
		return nil
	})
	for _, name := range []string{"tcp", "tcp6"} {
		if err == nil && calm {
			var text []byte
			text, err = os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", b.slot.PID, name))
			calm = !waiting(string(text))
		}
	}
	if err != nil {
		return false, fmt.Errorf("look at the connections of %s: %w", b.slot.Instance, err)
	}
	return calm, nil
}

// waiting reports whether a listener of proc_net_tcp(5) has connections that wait for accept.
func waiting(table string) bool {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 4 && f[3] == "0A" && !strings.HasSuffix(f[4], ":00000000") {
			return true
		}
	}
	return false
}

// seal lets no packet in or out, and keeps those that come. Its record outlives the agent.
func (b *sandbox) seal() error {
	if err := b.watchPackets(); err != nil {
		return err
	}
	b.slot.Held = true
	err := b.slot.save()
	if err == nil {
		err = b.inNetwork(func(ns int) error { return b.d.Seal(ns, "eth0") })
	}
	return err
}

// unseal opens the network again, and delivers the packets that came.
func (b *sandbox) unseal() error {
	if !b.slot.Held {
		return nil
	}
	if err := b.inNetwork(b.d.Unseal); err != nil {
		return err
	}
	packets := b.untap()
	b.slot.Held, b.slot.Move = false, nil
	return errors.Join(b.Deliver(packets), b.slot.save())
}

func (b *sandbox) inNetwork(f func(ns int) error) error {
	ns, err := os.Open(b.slot.netns())
	if err != nil {
		return err
	}
	defer ns.Close()
	return f(int(ns.Fd()))
}

// Arriving implements pando.Sandbox.
func (b *sandbox) Arriving() (pando.MoveMark, bool) {
	if b.slot.Move == nil {
		return pando.MoveMark{}, false
	}
	return *b.slot.Move, true
}

// movingDir makes a folder in memory for a program on its way. It may have secrets.
func movingDir() (string, error) {
	const memory = "/dev/shm"
	var fs unix.Statfs_t
	at := ""
	if unix.Statfs(memory, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
		at = memory
	}
	dir, err := os.MkdirTemp(at, "pando-move-")
	if err != nil {
		return "", fmt.Errorf("make a folder for a program that moves: %w", err)
	}
	return dir, nil
}
