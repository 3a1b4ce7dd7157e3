// Package lab makes virtual hosts on one machine: each has its own pid, net, mount and uts namespaces, and a
// bridge joins them with a client. A namespace lives exactly as long as its init, so killing that one process is the
// death of the host. The lab knows nothing of what runs on its hosts and never touches the machine's own network.
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
	"strconv"
)

// Config says which lab to make.
type Config struct {
	Hosts int    // 1 to 100
	Name  string // begins the names of its hosts
	Self  string // a program that passes `lab-init …` on to InitMain
	Dir   string // holds the lab's record; made by Up, removed by Down
	// Leashed hosts end with the process that made them, however it ends: for tests.
	Leashed bool
}

// Host is one member of the lab: a virtual host, the switch or the client.
type Host struct {
	Name  string `json:"name"`
	Pid   int    `json:"pid"` // of its init
	Start uint64 `json:"start"`
	IPv4  string `json:"ipv4,omitempty"`
	IPv6  string `json:"ipv6,omitempty"`
	leash *os.File
}

// Lab is a set of hosts, the switch that joins them and the client that talks to them.
type Lab struct {
	Hosts  []Host `json:"hosts"`
	Switch Host   `json:"switch"`
	Client Host   `json:"client"`
	dir    string
}

// Up makes a lab. What it made is taken down again if any of it fails.
func Up(ctx context.Context, c Config) (_ *Lab, err error) {
	if c.Hosts < 1 || c.Hosts > 100 {
		return nil, fmt.Errorf("make a lab of %d hosts: want 1 to 100", c.Hosts)
	}
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the lab's directory: %w (is there a lab already? take it down first)", err)
	}
	l := &Lab{dir: c.Dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Down())
		}
	}()
	if l.Switch, err = boot(ctx, c, "switch"); err != nil {
		return nil, err
	}
	if l.Client, err = boot(ctx, c, "client"); err != nil {
		return nil, err
	}
	for i := range c.Hosts {
		h, err := boot(ctx, c, c.Name+strconv.Itoa(i+1))
		if err != nil {
			return nil, err
		}
		l.Hosts = append(l.Hosts, h)
	}
	if err := l.wire(); err != nil {
		return nil, err
	}
	return l, l.save()
}

// Open finds the lab that Up made in dir.
func Open(dir string) (*Lab, error) {
	text, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if err != nil {
		return nil, fmt.Errorf("open the lab: %w (make one with `pando lab up`)", err)
	}
	l := &Lab{dir: dir}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("open the lab in %s: %w", dir, err)
	}
	return l, nil
}

func (l *Lab) save() error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.dir, "lab.json"), text, 0o600)
}

// List names the hosts that live, then the client.
func (l *Lab) List() []Host {
	var alive []Host
	for _, h := range append(l.Hosts[:len(l.Hosts):len(l.Hosts)], l.Client) {
		if h.alive() {
			alive = append(alive, h)
		}
	}
	return alive
}

// Exec is a command that will run inside all namespaces of the named host.
func (l *Lab) Exec(ctx context.Context, name string, argv ...string) (*exec.Cmd, error) {
	for _, h := range l.List() {
		if h.Name == name {
			args := []string{"--target", strconv.Itoa(h.Pid), "--mount", "--uts", "--net", "--pid", "--"}
			return exec.CommandContext(ctx, "nsenter", append(args, argv...)...), nil
		}
	}
	return nil, fmt.Errorf("lab host %q: %w (see `pando lab ls`)", name, fs.ErrNotExist)
}

// Down ends every host, and with it its processes, mounts and links, and removes the lab's directory.
func (l *Lab) Down() error {
	var errs []error
	for _, h := range append([]Host{l.Client, l.Switch}, l.Hosts...) {
		if err := h.end(); err != nil {
			errs = append(errs, fmt.Errorf("end lab host %s: %w", h.Name, err))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(l.dir))...)
}
