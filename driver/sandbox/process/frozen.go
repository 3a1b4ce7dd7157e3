package process

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/calls"
	"pando.run/pando/driver/sandbox/process/volume"
	"pando.run/pando/driver/sandbox/process/wire"
)

// frozenFile is the file of a snapshot with the frozen program and its machine.
const frozenFile = "pando.json"

// stored is the content of frozenFile.
type stored struct {
	Program wire.Frozen   `json:"program"`
	Machine pando.Machine `json:"machine"`
}

// Freeze implements pando.Sandbox. It refuses before anything stops.
func (b *sandbox) Freeze(ctx context.Context, dir string) (pando.Machine, error) {
	own := machine()
	if b.d.Freezer == nil {
		return own, fmt.Errorf("%w: this host has no CRIU", pando.ErrUnsupported)
	}
	if err := b.d.Freezer.Missing(); err != nil {
		return own, err
	}
	r, err := b.askSoon(ctx, wire.Request{Verb: "describe"})
	if err == nil {
		err = freezable(r.Frozen, b.slot.Spec)
	}
	if err == nil {
		err = b.Pause(ctx)
	}
	if err != nil {
		return own, err
	}
	p := *r.Frozen
	of, err := b.slot.frozen(p, dir)
	if err == nil {
		err = b.d.Freezer.Freeze(ctx, of)
	}
	if err == nil {
		err = packPrivate(b.slot.root(), dir)
	}
	if err == nil {
		err = storeFrozen(dir, stored{Program: p, Machine: own})
	}
	if err != nil {
		err = errors.Join(err, b.Resume(context.WithoutCancel(ctx)))
	}
	return own, err
}

// frozen describes a program of this sandbox for the Freezer, with the rights that its spec gives.
func (s *slot) frozen(p wire.Frozen, dir string) (pando.Frozen, error) {
	f := pando.Frozen{Inside: s.PID, PID: p.PID, UID: p.UID, GID: p.GID, Dir: dir, Pipe: p.Pipe}
	if s.Spec.Unconfined() {
		return f, nil
	}
	rules, err := calls.Filter()
	for _, r := range rules {
		f.Filter = binary.NativeEndian.AppendUint16(f.Filter, r.Op)
		f.Filter = append(f.Filter, r.Jt, r.Jf)
		f.Filter = binary.NativeEndian.AppendUint32(f.Filter, r.K)
	}
	return f, err
}

// freezable returns nil if a program can be frozen, else the reason.
func freezable(p *wire.Frozen, s pando.Spec) error {
	switch {
	case s.IsVM():
		return fmt.Errorf("%w: it is a virtual machine, which cannot be frozen; `pando scale` starts "+
			"others beside it", pando.ErrUnsupported)
	case p == nil:
		return fmt.Errorf("%w: an older build started this instance; `pando deploy` replaces it",
			pando.ErrUnsupported)
	case p.Users:
		return fmt.Errorf("%w: its program has a user namespace of its own, which CRIU cannot freeze "+
			"from outside; name a `user` other than root in the spec, and no image",
			pando.ErrUnsupported)
	case p.Layers:
		return fmt.Errorf("%w: the files that an image's program writes are not part of a snapshot; "+
			"run it without an image", pando.ErrUnsupported)
	case p.PID < wire.PidFirst:
		return fmt.Errorf("%w: its process has the number %d, which may be taken elsewhere; `pando "+
			"deploy` replaces it", pando.ErrUnsupported, p.PID)
	}
	return nil
}

func storeFrozen(dir string, s stored) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, frozenFile), b, 0o600)
}

// machine returns the kind of this machine.
func machine() (m pando.Machine) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.CPU = runtime.GOARCH
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, is, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(is)
			break
		}
	}
	return m
}

// readFrozen reads a snapshot and checks that this machine can run it.
func readFrozen(dir string) (wire.Frozen, error) {
	var s stored
	b, err := os.ReadFile(filepath.Join(dir, frozenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s.Program, fmt.Errorf("%w: it is no snapshot", pando.ErrInvalid)
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s.Program, fmt.Errorf("read a snapshot: %w", err)
	}
	return s.Program, s.runsHere()
}

// runsHere returns nil if this machine is of the kind of the program's.
func (s stored) runsHere() error {
	own := machine()
	switch {
	case s.Machine.Kernel != own.Kernel:
		return fmt.Errorf("%w: the program was frozen on kernel %s, and this host has %s; choose a "+
			"host with that kernel (`pando version` there)", pando.ErrRefused, s.Machine.Kernel, own.Kernel)
	case s.Machine.CPU != own.CPU:
		return fmt.Errorf("%w: the program was frozen on a processor %q, and this host has %q; choose "+
			"a host with that processor", pando.ErrRefused, s.Machine.CPU, own.CPU)
	}
	return nil
}

func (s *slot) root() string { return fmt.Sprintf("/proc/%d/root", s.PID) }

// thawer starts the frozen programs of snapshots.
type thawer struct{ driver *Driver }

// thawable reads a snapshot and gives a program the user of the frozen one, if the spec gives it
// that user.
func (d thawer) thawable(spec pando.SandboxSpec, p *wire.Program) (*wire.Frozen, *arriving, error) {
	if d.driver.Freezer == nil {
		return nil, nil, fmt.Errorf("%w: this host has no CRIU", pando.ErrUnsupported)
	}
	if err := d.driver.Freezer.Missing(); err != nil {
		return nil, nil, err
	}
	var f *wire.Frozen
	var a *arriving
	var err error
	if spec.Arrives != nil {
		a, f, err = newArriving(spec.Arrives, spec.Instance.Move)
	} else {
		f, err = d.kept(spec.From)
	}
	if err != nil {
		return nil, nil, err
	}
	if p.Users != nil || p.Layers != nil {
		return nil, nil, fmt.Errorf("%w: the spec has changed: its program has an image or root, and "+
			"the snapshot has neither", pando.ErrConflict)
	}
	if err := checkUser(f, spec.Spec, *p); err != nil {
		return nil, nil, err
	}
	p.UID, p.GID = f.UID, f.GID
	return f, a, nil
}

// checkUser returns nil if a frozen program has the user of the spec. Without a user in it, each
// sandbox has one of its own, and a program keeps that of the sandbox where it began.
func checkUser(f *wire.Frozen, s pando.Spec, p wire.Program) error {
	switch {
	case f.PID < wire.PidFirst:
		return fmt.Errorf("%w: its process has the number %d, which no program of a sandbox has",
			pando.ErrForbidden, f.PID)
	case s.User != "" && (f.UID != p.UID || f.GID != p.GID):
		return fmt.Errorf("%w: it was frozen as user %d and group %d, and the user %q of the spec has %d "+
			"and %d on this host; `pando deploy` starts the program anew", pando.ErrForbidden, f.UID, f.GID,
			s.User, p.UID, p.GID)
	case s.User == "" && (f.UID != f.GID || f.UID < uidFirst || f.UID >= volume.UidVolumes):
		return fmt.Errorf("%w: it was frozen as user %d and group %d, and the spec gives it a user of "+
			"its own; `pando deploy` starts the program anew", pando.ErrForbidden, f.UID, f.GID)
	}
	return nil
}

// kept reads a snapshot of this host's store.
func (d thawer) kept(dir string) (*wire.Frozen, error) {
	if !filepath.IsAbs(dir) && (d.driver.Layers == "" || !filepath.IsLocal(dir)) {
		return nil, fmt.Errorf("%w: this host keeps no snapshot %s", pando.ErrNotFound, dir)
	}
	f, err := readFrozen(d.folder(dir))
	return &f, err
}

// folder returns the folder of a snapshot. A decrypted one is outside the store.
func (d thawer) folder(from string) string {
	if filepath.IsAbs(from) {
		return from
	}
	return filepath.Join(d.driver.Layers, from)
}

// thawIn starts the frozen program of a snapshot in a sandbox that is ready for it. A program with
// its connections stays stopped.
func (d thawer) thawIn(
	ctx context.Context, b *sandbox, f wire.Frozen, dir string, connections bool,
) error {
	s := b.slot
	if b.thaws == nil {
		return fmt.Errorf("%w: the sandbox was made by an older build", pando.ErrNotReady)
	}
	if err := unpackPrivate(s.root(), dir); err != nil {
		return err
	}
	out, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", s.PID, b.thaws.Output), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open the output of the program: %w", err)
	}
	defer out.Close()
	of, err := s.frozen(f, dir)
	if err == nil {
		of.Output, of.Groups, of.Entry, of.Connections = out.Fd(), d.driver.Groups, s.cgroup.Entry(), connections
		err = d.driver.Freezer.Thaw(ctx, of)
	}
	if err != nil {
		return err
	}
	if root, err := os.OpenRoot(s.root()); err == nil {
		_ = root.Remove(criuCache)
		root.Close()
	}
	err = wire.Send(b.watch, wire.Request{Verb: "go", PID: f.PID}, -1)
	if err != nil || connections {
		return err
	}
	return b.Resume(ctx)
}
