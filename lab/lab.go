// Package lab makes virtual hosts on one machine. Each has its own pid, net, mount and uts
// namespaces, and a bridge joins them with a client. A namespace lives exactly as long as its init,
// so killing that one process is the death of the host.
//
// Each host has its own /run, bpffs, cgroups and /var/lib/pando, so programs on two hosts meet over
// the network only. The lab is independent of the programs on its hosts and never touches the
// machine's own network.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Config describes a lab.
type Config struct {
	Hosts int    // 1 to 100
	Name  string // prefix of its hosts' names
	Self  string // a program that passes `lab-init …` to InitMain
	Dir   string // holds the lab's record; made by Up, removed by Down
	// Leashed hosts end with the process that made them, even after a crash: for tests and demos.
	Leashed  bool
	OnlyIPv6 bool // no member has an IPv4 address
	// Router adds a router between the client and the VIPs. Route starts it.
	Router bool
	// MTU is the largest packet of the network of the members: 1600.
	MTU int
	// Skew is how far the clocks of hosts are ahead, by name. Only the pando of a host sees it.
	Skew map[string]time.Duration
}

// SkewVariable is the environment variable with the skew of the clock of a lab host.
const SkewVariable = "PANDO_LAB_SKEW"

// Host is one member of the lab: a virtual host, the switch or the client.
type Host struct {
	Name  string `json:"name"`
	Pid   int    `json:"pid"` // of its init
	Start uint64 `json:"start"`
	IPv4  string `json:"ipv4,omitempty"`
	IPv6  string `json:"ipv6,omitempty"`
	Port  string `json:"port,omitempty"` // its device on the switch
	// Skew is how far its clock is ahead.
	Skew  time.Duration `json:"skew,omitempty"`
	leash *os.File
}

// Lab is a set of hosts, the switch that joins them and the client that uses them.
type Lab struct {
	Hosts  []Host `json:"hosts"`
	Switch Host   `json:"switch"`
	Client Host   `json:"client"`
	Router Host   `json:"router,omitzero"` // see Config
	Self   string `json:"self"`            // see Config
	Leash  bool   `json:"leash,omitempty"`
	Only6  bool   `json:"only6,omitempty"` // see Config
	dir    string
	groups groups
}

// Up makes a lab. If a step fails, Up takes the lab down again.
func Up(ctx context.Context, c Config) (_ *Lab, err error) {
	if c.Hosts < 1 || c.Hosts > 100 {
		return nil, fmt.Errorf("make a lab of %d hosts: want 1 to 100", c.Hosts)
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return nil, fmt.Errorf("make the lab's directory: %w", err)
	}
	if err := os.Mkdir(c.Dir, 0o700); errors.Is(err, fs.ErrExist) && !isFree(c.Dir) {
		return nil, fmt.Errorf("make a lab in %s: %w: there is a lab already; take it down first "+
			"(`pando lab down`)", c.Dir, err)
	} else if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the lab's directory: %w", err)
	}
	l := &Lab{dir: c.Dir, Self: c.Self, Leash: c.Leashed, Only6: c.OnlyIPv6}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Down())
		}
	}()
	if l.groups, err = openGroups(c.Dir); err != nil {
		return nil, err
	}
	if l.Switch, err = boot(ctx, c, "switch", l.groups); err != nil {
		return nil, err
	}
	if l.Client, err = boot(ctx, c, "client", l.groups); err != nil {
		return nil, err
	}
	if c.Router {
		if l.Router, err = boot(ctx, c, RouterName, l.groups); err != nil {
			return nil, err
		}
	}
	for i := range c.Hosts {
		h, err := boot(ctx, c, c.Name+strconv.Itoa(i+1), l.groups)
		if err != nil {
			return nil, err
		}
		h.Skew = c.Skew[h.Name]
		l.Hosts = append(l.Hosts, h)
	}
	if err := l.wire(c.MTU); err != nil {
		return nil, err
	}
	return l, l.save()
}

// isFree reports whether a directory is empty and no live host was made in it.
func isFree(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0 && len(inits(dir)) == 0
}

// Open finds the lab that Up made in dir.
func Open(dir string) (*Lab, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open the lab: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err == nil {
			return nil, fmt.Errorf("open the lab in %s: %w: it was never finished; remove its parts with "+
				"`pando lab down`", dir, fs.ErrNotExist)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no lab in %s; `pando lab up` makes one, and --dir names "+
			"another folder", pando.ErrNotFound, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open the lab: %w", err)
	}
	l := &Lab{dir: dir}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("open the lab in %s: %w; remove it with `pando lab down`", dir, err)
	}
	l.groups, err = openGroups(dir)
	return l, err
}

// Sweep removes a lab in dir, even one that was never finished or has a damaged record.
func Sweep(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("take the lab down: %w", err)
	}
	if _, err := os.Stat(dir); err != nil && len(inits(dir)) == 0 {
		return fmt.Errorf("take the lab down: %w (there is none)", err)
	}
	l := &Lab{dir: dir}
	if l.groups, err = openGroups(dir); err != nil {
		return err
	}
	return l.Down()
}

func (l *Lab) save() error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, "lab.json")
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("remember the lab: %w", err)
	}
	return os.Rename(path+".new", path)
}

// members returns the hosts, then the client and the router.
func (l *Lab) members() []Host {
	all := append(l.Hosts[:len(l.Hosts):len(l.Hosts)], l.Client)
	if l.Router.Name != "" {
		all = append(all, l.Router)
	}
	return all
}

// member finds a host or the client by name.
func (l *Lab) member(name string) (Host, error) {
	for _, h := range l.members() {
		if h.Name == name {
			return h, nil
		}
	}
	return Host{}, fmt.Errorf("lab host %q: %w (see `pando lab ls`)", name, fs.ErrNotExist)
}

// List returns the live hosts, then the client and the router.
func (l *Lab) List() []Host {
	return slices.DeleteFunc(l.members(), func(h Host) bool { return !h.alive() })
}

// Exec returns a command that will run inside all namespaces of the named host.
func (l *Lab) Exec(ctx context.Context, name string, argv ...string) (*exec.Cmd, error) {
	h, err := l.member(name)
	if err != nil {
		return nil, err
	}
	if !h.alive() {
		return nil, fmt.Errorf("lab host %q has died: its first process (%d) has ended; boot it "+
			"(`pando lab boot %[1]s`)", name, h.Pid)
	}
	args := []string{"--target", strconv.Itoa(h.Pid), "--mount", "--uts", "--net", "--pid"}
	if at := h.folder(); at != "" {
		args = append(args, "--wdns="+at)
	}
	args = append(args, "--")
	if h.Skew != 0 {
		args = append(args, "env", SkewVariable+"="+h.Skew.String())
	}
	return exec.CommandContext(ctx, "nsenter", append(args, argv...)...), nil
}

// Data returns the folder on this machine that a host sees as /var/lib/pando.
func (l *Lab) Data(name string) string { return filepath.Join(l.dir, "hosts", name) }

// folder returns the caller's own folder if the host has it, so that relative names mean the same
// there. Otherwise it returns "", the host's root.
func (h Host) folder() string {
	at, err := os.Getwd()
	if err != nil {
		return ""
	}
	here, err := os.Stat(at)
	if err != nil {
		return ""
	}
	there, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", h.Pid, at))
	if err != nil || !os.SameFile(here, there) {
		return ""
	}
	return at
}

// Kill ends one host with all its processes. The host stays in the lab's record. Its cable goes
// first, as in a power cut: the kernel takes a namespace down in steps, and programs of the host
// would steer on meanwhile.
func (l *Lab) Kill(name string) error {
	h, err := l.member(name)
	if err != nil {
		return err
	}
	if err := l.Resume(name); err != nil { // a frozen process does not end
		return err
	}
	return errors.Join(l.unplug(h), h.end())
}

// Boot starts a dead host again. It has its name, addresses and files as before, and an empty /run.
func (l *Lab) Boot(ctx context.Context, name string) error {
	i := slices.IndexFunc(l.Hosts, func(h Host) bool { return h.Name == name })
	if i < 0 {
		return fmt.Errorf("lab host %q: %w (see `pando lab ls`)", name, fs.ErrNotExist)
	}
	if l.Hosts[i].alive() {
		return fmt.Errorf("boot lab host %s: %w: it is up; kill it first (`pando lab kill %[1]s`)", name,
			fs.ErrExist)
	}
	c := Config{Self: l.Self, Dir: l.dir, Leashed: l.Leash}
	h, err := boot(ctx, c, name, l.groups)
	if err != nil {
		return err
	}
	if err := l.replug(&h, i+1); err != nil {
		return errors.Join(fmt.Errorf("boot lab host %s: %w", name, err), h.end())
	}
	h.Skew = l.Hosts[i].Skew
	l.Hosts[i] = h
	return l.save()
}

// Down ends every host with its processes, mounts and links, and removes the lab's directory.
func (l *Lab) Down() error {
	var errs []error
	for _, h := range inits(l.dir) {
		if err := h.end(); err != nil {
			errs = append(errs, fmt.Errorf("end lab host %s: %w", h.Name, err))
		}
	}
	err := os.RemoveAll(l.dir)
	if errors.Is(err, unix.EBUSY) && isFree(l.dir) {
		err = nil // a mount of the user's: it is empty
	}
	return errors.Join(append(errs, l.groups.remove(), err)...)
}
