// Package process starts instances as processes of the host: namespaces, cgroups, an unprivileged
// user, and a shim per sandbox. The shim is the sandbox's first process and outlives any agent.
//
// It never decides which instances run. It makes sandboxes ahead of need (slots of the pool), and
// instances claim them. If a shim ends, the kernel ends its whole sandbox, so nothing is ever left
// behind.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/logfile"
	"pando.run/pando/driver/sandbox/process/view"
	"pando.run/pando/driver/sandbox/process/volume"
	"pando.run/pando/driver/sandbox/process/wire"
)

var _ pando.Sandboxes = (*Driver)(nil)

// Config holds the places of sandboxes.
type Config struct {
	Host    pando.HostName
	RunDir  string   // sockets of the sandboxes, a folder for each
	LogDir  string   // output of programs: <tenant>/<service>/<instance>/log
	Self    []string // ShimCommand, and its arguments before the role
	Prefix4 netip.Prefix
	Prefix6 netip.Prefix
	Cgroups pando.Cgroups
	Groups  string   // the root of the hierarchies
	Hidden  []string // folders of the host that no instance sees
	Pool    int      // sandboxes kept ready
	// Images has the files of services with an image, and Layers is the folder of their layers. Nil
	// and "": no service of this host has an image.
	Images pando.Images
	Layers string
	// Volumes is the folder of the volumes of all services. "": this host keeps none.
	Volumes string
	// Freezer freezes programs. Nil: this host makes no snapshots.
	Freezer pando.Freezer
	// Users is the folder with the records of the ranges of users.
	Users string
	// Forward makes a network namespace send the flows of some ports to an external endpoint. Nil:
	// this host serves none.
	Forward func(ns int, e pando.External, ports []pando.Port) error
	// Seal drops all packets of a link of a network namespace, and Unseal no more. Nil: no program of
	// this host moves.
	Seal   func(ns int, link string) error
	Unseal func(ns int) error
	// Machine returns the words of the program that runs the machine of a spec of kind vm. Nil: this
	// host runs none.
	Machine func(pando.Spec) []string
	// PowerOff presses the power button of the machine in the network namespace of the calling
	// thread. Nil: a machine is switched off at once.
	PowerOff func(context.Context) error
	// Made is called for each sandbox that is made ahead of need, before its use. It may be nil.
	Made  func(pando.Link) error
	Clock pando.Clock
	Log   *slog.Logger
}

// Driver makes and claims sandboxes. Its methods may be called from any goroutine.
type Driver struct {
	Config
	pool     *pool
	ranges   ranges
	kept     *volume.Store
	mu       sync.Mutex
	prepared map[pando.InstanceID]*prepared
	boxes    map[*sandbox]bool // whose shims are watched
	gone     chan struct{}     // wakes the sweep of logs
	done     chan struct{}
	wg       sync.WaitGroup
	removals sync.WaitGroup
}

// VolumeStore returns the volumes of the host.
func (d *Driver) VolumeStore() *volume.Store { return d.kept }

// uidFirst is the first uid for instances without `user`. Each slot has its own.
const uidFirst = 2_000_000_000

// New returns a driver that fills its pool in the background.
func New(c Config) (*Driver, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: sandboxes need root (namespaces and cgroups)", pando.ErrForbidden)
	}
	for _, dir := range []string{c.RunDir, c.LogDir} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("make a folder for sandboxes: %w", err)
		}
	}
	if err := volume.MakeFolder(c.Volumes); err != nil {
		return nil, err
	}
	d := &Driver{
		Config:   c,
		prepared: map[pando.InstanceID]*prepared{},
		boxes:    map[*sandbox]bool{},
		ranges:   ranges{dir: c.Users, runDir: c.RunDir, clock: c.Clock},
		kept:     volume.New(c.Volumes, c.Host, c.Clock),
		gone:     make(chan struct{}, 1),
		done:     make(chan struct{}),
	}
	d.pool = newPool(c, d.newSlot)
	d.pool.lasts = func(s *slot) error { return s.lasts(c.LogDir) }
	found, err := d.found()
	if err != nil {
		return nil, fmt.Errorf("find the sandboxes of a former agent: %w", err)
	}
	for _, s := range found {
		d.pool.adopt(s)
	}
	d.wg.Add(3)
	go func() {
		defer d.wg.Done()
		d.pool.keepReady(d.done)
	}()
	go d.sweeping()
	go d.watchShims()
	d.pool.refill()
	return d, nil
}

// Close stops the filling of the pool. Sandboxes keep running.
func (d *Driver) Close() error {
	close(d.done)
	d.wg.Wait()
	d.removals.Wait()
	return nil
}

// Purge ends every sandbox of this host and removes its files, links and groups.
func (d *Driver) Purge(context.Context) error {
	d.pool.stop()
	d.removals.Wait()
	found, err := d.found()
	errs := []error{err}
	for _, s := range found {
		errs = append(errs, s.destroy())
	}
	d.Cgroups.Prune(filepath.Dir(d.cgroupName(0)))
	return errors.Join(errs...)
}

// found reads the slots of former agents from the run directory. If an agent died while it made a
// slot, the slot has no record and soon no shim. The list has it as dead. A slot whose record cannot
// be understood is left alone: its program may run. An error says that a record could not be read.
func (d *Driver) found() ([]*slot, error) {
	dirs, err := os.ReadDir(d.RunDir)
	if err != nil {
		return nil, err
	}
	var out []*slot
	for _, dir := range dirs {
		number, err := strconv.Atoi(dir.Name())
		if err != nil {
			continue
		}
		s := d.slot(number)
		err = readSlot(s.dir, s)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			s.cgroup, err = d.Cgroups.Make(d.cgroupName(number))
		} else if !errors.Is(err, pando.ErrInvalid) {
			return nil, err
		}
		if err != nil {
			d.pool.keep(number)
			d.Log.Error("a sandbox is left out and left alone", "number", number, "instance", s.Instance,
				"error", err)
			continue
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *slot) int { return a.Number - b.Number })
	return out, nil
}

// readSlot reads the record of a sandbox in its folder. ErrInvalid: the record is there, and makes no
// sense.
func readSlot(dir string, s *slot) error {
	b, err := os.ReadFile(filepath.Join(dir, "slot.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, s); err != nil {
		return fmt.Errorf("%w: the record of the sandbox in %s: %w", pando.ErrInvalid, dir, err)
	}
	return nil
}

// records reads the slots with an instance in a run directory, with or without an agent. An error
// says that there may be more.
func records(runDir string) (out []slot, err error) {
	dirs, err := os.ReadDir(runDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, dir := range dirs {
		var s slot
		err := readSlot(filepath.Join(runDir, dir.Name()), &s)
		switch {
		case err == nil && s.Instance != "":
			out = append(out, s)
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return out, fmt.Errorf("list the sandboxes of this host: %w", err)
		}
	}
	return out, nil
}

// Instances counts the instances with a sandbox in a run directory, with or without an agent. An
// error says that there may be more.
func Instances(runDir string) (int, error) {
	all, err := records(runDir)
	return len(all), err
}

// Images returns the digests of the images and bundles that instances with a sandbox in a run
// directory run. An error says that there may be more.
func Images(runDir string) (map[string]bool, error) {
	out := map[string]bool{}
	all, err := records(runDir)
	for _, s := range all {
		if digest := s.Spec.Files().Digest; digest != "" {
			out[digest] = true
		}
	}
	return out, err
}

// servicesOf returns the services of the instances with a sandbox in a run directory.
func servicesOf(runDir string) (map[pando.ServiceKey]bool, error) {
	out := map[pando.ServiceKey]bool{}
	all, err := records(runDir)
	for _, s := range all {
		out[s.Service] = true
	}
	return out, err
}

func (d *Driver) cgroupName(number int) string {
	return filepath.Join("pando", string(d.Host), string(pando.DefaultTenant), strconv.Itoa(number))
}

// OpenLog reads the log of an instance of a service, running or gone: its last lines, and with Follow
// the lines after them.
func (d *Driver) OpenLog(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	dir := d.logDir(s, i)
	if filepath.Dir(dir) != d.logDir(s, "") { // the name is a path
		return nil, fmt.Errorf("log of %s: %w", i, pando.ErrNotFound)
	}
	return logfile.Read(ctx, d.Clock, dir, i, q)
}

func (d *Driver) logDir(s pando.ServiceKey, i pando.InstanceID) string {
	return filepath.Join(d.LogDir, logName(s, i))
}

// logName returns the folder of an instance's log below LogDir.
func logName(s pando.ServiceKey, i pando.InstanceID) string {
	return filepath.Join(string(s.Tenant), string(s.Name), string(i))
}

// addresses returns the addresses of a slot: its number in the host's ranges. v6 mirrors v4 in its
// last 32 bits.
func (d *Driver) addresses(number int) (v4, v6 netip.Addr) {
	four := d.Prefix4.Addr().As4()
	n := uint32(four[2])<<8 | uint32(four[3]) + uint32(number) + 2
	four[2], four[3] = byte(n>>8), byte(n)
	six := d.Prefix6.Addr().As16()
	copy(six[12:], four[:])
	return netip.AddrFrom4(four), netip.AddrFrom16(six)
}

// Start implements pando.Sandboxes.
func (d *Driver) Start(ctx context.Context, spec pando.SandboxSpec) (pando.Sandbox, error) {
	if b := d.letGo(ctx, spec); b != nil {
		return b, nil
	}
	s, err := d.claim(spec.Spec)
	if err != nil {
		return nil, err
	}
	return d.use(ctx, s, spec, false)
}

// use gives a slot to an instance. It starts the program in it, or only loads it.
func (d *Driver) use(ctx context.Context, s *slot, spec pando.SandboxSpec, load bool) (*sandbox,
	error) {
	b, err := d.start(ctx, s, spec, load)
	if err != nil {
		d.scrap(s)
		return nil, fmt.Errorf("start %s: %w", spec.Instance.ID, err)
	}
	return b, nil
}

func (d *Driver) start(ctx context.Context, s *slot, spec pando.SandboxSpec, load bool) (*sandbox,
	error) {
	if err := limit(s.cgroup, spec.Spec.Resources); err != nil { // it may give the group a further folder
		return nil, err
	}
	p, err := d.program(s, spec)
	if err == nil {
		err = d.kept.WaitFree(ctx, p.Volumes)
	}
	var cold *wire.Frozen
	var moved *arriving
	if err == nil && (spec.From != "" || spec.Arrives != nil) {
		cold, moved, err = thawer{d}.thawable(spec, &p)
	}
	if err != nil {
		return nil, err
	}
	if len(p.Devices) > 0 {
		if err := s.cgroup.Devices(p.Devices); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"self.sock", "notify.sock"} {
		path := filepath.Join(s.self(), name)
		err := errors.Join(os.Chown(path, int(p.IDOutside(p.UID)), int(p.IDOutside(p.GID))),
			os.Chmod(path, 0o600))
		if err != nil {
			return nil, err
		}
	}
	if err := s.resolve(resolverOf(spec)); err != nil {
		return nil, err
	}
	if e, ok := spec.Spec.External(spec.Instance.Ordinal); ok {
		if err := s.forward(d.Forward, e, spec.Spec.Ports); err != nil {
			return nil, err
		}
	}
	s.Instance, s.Service, s.Spec = spec.Instance.ID, spec.Instance.Service, spec.Spec
	if err := s.save(); err != nil {
		return nil, err
	}
	if cold == nil {
		b, err := d.open(ctx, s, wire.Request{Run: &p, Load: load})
		return b, unseen(p, err)
	}
	b, err := thawer{d}.hold(ctx, s, wire.Request{Run: &p, Thaw: true})
	if err != nil {
		return nil, err
	}
	if moved != nil {
		err = moved.land(ctx, b, *cold)
	} else {
		err = thawer{d}.thawIn(ctx, b, *cold, thawer{d}.folder(spec.From), false)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	go b.listen()
	return b, nil
}

// limit sets the limits of an instance. A machine that counts no memory holds only those of the spec.
func limit(g pando.Cgroup, r pando.Resources) error {
	if g.Limit(bounded(r)) == nil {
		return nil
	}
	return g.Limit(r)
}

// bounded returns the limits of an instance. Without a limit of memory in its spec, it may take
// three quarters of the host's, so that one program cannot take the host with it.
func bounded(r pando.Resources) pando.Resources {
	var host unix.Sysinfo_t
	if r.MemoryBytes == 0 && unix.Sysinfo(&host) == nil {
		r.MemoryBytes = int64(host.Totalram) * int64(host.Unit) / 4 * 3
	}
	return r
}

// program returns the program that the shim starts.
func (d *Driver) program(s *slot, spec pando.SandboxSpec) (wire.Program, error) {
	var uid, gid uint32
	if spec.Spec.Image.Digest == "" {
		var err error
		if uid, gid, err = identity(spec.Spec.User, uint32(uidFirst+s.Number)); err != nil {
			return wire.Program{}, err
		}
	}
	by, err := runtimeOf(spec.Spec)
	if err != nil {
		return wire.Program{}, err
	}
	env := environment(spec)
	p := wire.Program{Runtime: by,
		Instance: spec.Instance.ID, Service: spec.Instance.Service, Argv: spec.Spec.Argv(),
		Dir: spec.Spec.WorkingDir, UID: uid, GID: gid,
		LogDir: logName(spec.Instance.Service, spec.Instance.ID), Cgroup: s.cgroup.Entry(),
		Hostname: hostname(spec), Address: s.IP4, Hosts: spec.Spec.ExtraHosts,
		Open: spec.Spec.Unconfined(), Init: spec.Spec.Init,
		Limits: spec.Spec.Ulimits, Sysctls: spec.Spec.Sysctls, Tmpfs: spec.Spec.Tmpfs, ReadOnly: spec.Spec.ReadOnly, Configs: spec.Configs,
		Umask: spec.Spec.Umask,
	}
	p.Idle = spec.Instance.Run != nil && spec.Instance.Run.Attached
	if p.Idle && by != "" {
		return p, fmt.Errorf("%w: with `runtime: %s` a run has a command of its own: leave out -it, or "+
			"enter a running instance with `pando exec -it`", pando.ErrUnsupported, spec.Spec.Runtime)
	}
	p.VIPs = slices.DeleteFunc([]netip.Addr{spec.VIP4, spec.VIP6},
		func(a netip.Addr) bool { return !a.IsValid() })
	if spec.Spec.Image.Digest != "" {
		if err := d.inImage(&p, spec.Spec, env); err != nil {
			return p, err
		}
	}
	if err := inMachine(&p, spec.Spec, d.Machine); err != nil {
		return p, err
	}
	for k, v := range env {
		p.Env = append(p.Env, k+"="+v)
	}
	if p.Dir == "" || len(spec.Spec.Endpoints) > 0 {
		p.Dir = "/"
	}
	if p.Secrets, err = readSecrets(spec); err != nil {
		return p, err
	}
	if p.Volumes, err = binds(spec.Spec.Binds(), d.Hidden); err == nil {
		err = d.ranges.give(&p, spec.Spec)
	}
	if err == nil {
		err = errors.Join(d.kept.Provide(spec, &p), grant(&p, spec.Spec, d.Hidden))
	}
	if err != nil || p.Layers != nil {
		return p, err
	}
	if spec.Spec.Bundle.Digest != "" {
		return p, d.inBundle(&p, spec.Spec)
	}
	p.Show = append(p.Show, named(spec.Spec, p.Env)...)
	if view.InVolume(p, p.Dir) {
		return p, nil
	}
	err = hasFolder(os.Stat, p.Dir)
	if err != nil {
		err = fmt.Errorf("%w, or send the folder to every host with `bundle: .`", err)
	}
	return p, err
}

// environment returns the variables of a program.
func environment(spec pando.SandboxSpec) map[string]string {
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp",
		"HOSTNAME":     hostname(spec),
		"PANDO_SOCKET": "/run/pando/self.sock", "PANDO_INSTANCE": string(spec.Instance.ID),
		"PANDO_SERVICE": string(spec.Spec.Name),
		"PANDO_ROLE":    string(spec.Instance.Role), "NOTIFY_SOCKET": "/run/pando/notify.sock",
	}
	if spec.VIP4.IsValid() {
		env["PANDO_VIP"] = spec.VIP4.String()
	}
	if r := spec.Instance.Run; r != nil {
		env["PANDO_RUN"] = strconv.Itoa(r.Number)
	}
	if n := spec.Instance.Ordinal; n > 0 && spec.Spec.Stateful() {
		env["PANDO_ORDINAL"], env["PANDO_START"] = strconv.Itoa(n-1), string(spec.Instance.Start)
		env["PANDO_NAME"] = pando.OrdinalDomain(spec.Instance.Service, n)
	}
	for k, v := range spec.Spec.Environment {
		env[k] = v
	}
	return env
}

// identity returns the user and group of "name", "uid" or "uid:gid".
func identity(name string, otherwise uint32) (uid, gid uint32, err error) {
	if name == "" {
		return otherwise, otherwise, nil
	}
	first, second, both := strings.Cut(name, ":")
	u, err := user.Lookup(first)
	if err != nil {
		if u, err = user.LookupId(first); err != nil {
			u = &user.User{Uid: first, Gid: first}
		}
	}
	if both {
		u.Gid = second
		if g, err := user.LookupGroup(second); err == nil {
			u.Gid = g.Gid
		}
	}
	a, err1 := strconv.ParseUint(u.Uid, 10, 32)
	b, err2 := strconv.ParseUint(u.Gid, 10, 32)
	// To the kernel, -1 means "unchanged".
	if err1 != nil || err2 != nil || a == math.MaxUint32 || b == math.MaxUint32 {
		return 0, 0, fmt.Errorf("%w: there is no user %q on this host; check `user` in the spec",
			pando.ErrInvalid, name)
	}
	return uint32(a), uint32(b), nil
}

// attachingMax bounds the shims that Attach asks at a time.
const attachingMax = 32

// Attach implements pando.Sandboxes. It asks all shims side by side, each for at most shimWaitMax: a
// shim that does not answer keeps no agent out.
func (d *Driver) Attach(ctx context.Context) ([]pando.Sandbox, error) {
	slots, err := d.found()
	if err != nil {
		return nil, fmt.Errorf("find the sandboxes of a former agent: %w", err)
	}
	slots = slices.DeleteFunc(slots, func(s *slot) bool { return s.Instance == "" })
	out := make([]pando.Sandbox, len(slots))
	var wg sync.WaitGroup
	places := make(chan struct{}, attachingMax)
	for n, s := range slots {
		places <- struct{}{}
		wg.Go(func() {
			if b := d.attach(ctx, s); b != nil {
				out[n] = b
			}
			<-places
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("find the sandboxes of a former agent: %w", ctx.Err())
	}
	return slices.DeleteFunc(out, func(b pando.Sandbox) bool { return b == nil }), nil
}

// attach returns the sandbox of a slot of a former agent, or nil if no program ever started in it.
func (d *Driver) attach(ctx context.Context, s *slot) *sandbox {
	ctx, cancel := context.WithTimeout(ctx, shimWaitMax)
	defer cancel()
	var b *sandbox
	err := s.answerable()
	if err == nil {
		b, err = d.open(ctx, s, wire.Request{})
	}
	switch {
	case err == nil && b.empty:
		// A former agent died between the claim and the start: there is no program to continue.
		b.close()
		d.scrap(s)
		return nil
	case err == nil:
		return b
	case s.alive():
		// Its program runs on. What failed may pass, and its shim is asked again.
		return d.silent(s, err)
	}
	// Its shim ended without an agent, and the kernel ended the program with it. The agent gets the
	// exit from the sandbox, with the last lines of its log, and then removes it.
	d.Log.Warn("the shim of a sandbox is gone", "instance", s.Instance, "error", err)
	return d.lost(s)
}

// scrap removes a sandbox in which nothing runs, and frees its number once it is gone.
func (d *Driver) scrap(s *slot) {
	if err := s.destroy(); err != nil {
		d.Log.Error("a sandbox without a program is not wholly gone; the next agent tries again",
			"number", s.Number, "instance", s.Instance, "error", err)
		if s.alive() {
			return
		}
	}
	d.pool.free(s.Number)
}
