package pando

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Grant names something of a host that programs need, as KIND=NAME: a device such as device=kvm, a
// path such as path=/proc/modules:ro, or netns=host. A host gives it if its owner allows that.
type Grant string

// GrantKind is the part of a grant before the sign.
type GrantKind string

const (
	GrantDevice GrantKind = "device" // a file in /dev, which the instance may read and write
	GrantPath   GrantKind = "path"   // a file or folder at the same path, :ro or :rw
	GrantNetns  GrantKind = "netns"  // GrantHostNet
)

// GrantHostNet is the network of the host in place of one of the instance's own.
const GrantHostNet Grant = "netns=host"

// GrantsMax is the largest number of grants of a spec, and of a host.
const GrantsMax = 32

const grantTextMax = 256

// grantDevice is the form of a name below /dev.
var grantDevice = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$`)

// OwnDevices are the names in /dev of every instance.
var OwnDevices = []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm",
	"mqueue", "fd", "stdin", "stdout", "stderr"}

// grantsNone are folders that are too wide for a grant, or the instance's own.
var grantsNone = []string{"/", "/proc", "/sys", "/dev", "/etc", "/run", "/tmp", "/usr", "/var",
	"/var/tmp"}

// ParseGrant returns the grant of a text in its only form: a path ends with :ro or :rw.
func ParseGrant(s string) (Grant, error) {
	kind, name, ok := strings.Cut(s, "=")
	wrong := func(format string, about ...any) (Grant, error) {
		return "", fmt.Errorf("%w: the grant %q: "+format, append([]any{ErrInvalid, s}, about...)...)
	}
	switch {
	case !ok || len(s) > grantTextMax:
		return wrong("want device=NAME, path=PATH:ro, path=PATH:rw or netns=host")
	case GrantKind(kind) == GrantDevice:
		name = strings.TrimPrefix(name, "/dev/")
		first, _, _ := strings.Cut(name, "/")
		switch {
		case !grantDevice.MatchString(name) || path.Clean(name) != name:
			return wrong("want the name of a file in /dev, such as device=kvm or device=net/tun")
		case slices.Contains(OwnDevices, first):
			return wrong("every instance has /dev/%s: leave it out", name)
		}
		return Grant(kind + "=" + name), nil
	case GrantKind(kind) == GrantPath:
		return parseGrantPath(name, wrong)
	case Grant(s) == GrantHostNet:
		return GrantHostNet, nil
	}
	return wrong("want device=NAME, path=PATH:ro, path=PATH:rw or netns=host")
}

func parseGrantPath(name string, wrong func(string, ...any) (Grant, error)) (Grant, error) {
	at, mode := name, "ro"
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		at, mode = name[:i], name[i+1:]
	}
	inside := func(dir string) bool { return at == dir || strings.HasPrefix(at, dir+"/") }
	switch {
	case mode != "ro" && mode != "rw":
		return wrong("want :ro or :rw at the end")
	case !path.IsAbs(at) || path.Clean(at) != at || strings.ContainsAny(at, ":\x00\n "):
		return wrong("want an absolute path, such as path=/sys/kernel/debug:ro")
	case inside("/dev"):
		return wrong("want device=%s", strings.TrimPrefix(strings.TrimPrefix(at, "/dev"), "/"))
	case slices.Contains(grantsNone, at):
		return wrong("want a file or folder below %s that the program needs", at)
	case inside("/run/pando"), inside("/run/secrets"), inside("/run/configs"):
		return wrong("%s is the instance's own", at)
	}
	return Grant(string(GrantPath) + "=" + at + ":" + mode), nil
}

// Kind returns the kind of a parsed grant.
func (g Grant) Kind() GrantKind {
	kind, _, _ := strings.Cut(string(g), "=")
	return GrantKind(kind)
}

// Device returns the name below /dev, or "".
func (g Grant) Device() string {
	name, ok := strings.CutPrefix(string(g), string(GrantDevice)+"=")
	if !ok {
		return ""
	}
	return name
}

// Path returns the path of the host, and whether the program writes there; "" for other kinds.
func (g Grant) Path() (at string, write bool) {
	name, ok := strings.CutPrefix(string(g), string(GrantPath)+"=")
	if !ok {
		return "", false
	}
	at, write = strings.CutSuffix(name, ":rw")
	return strings.TrimSuffix(at, ":ro"), write
}

// covers reports whether a host with grant g gives o. A path to write covers the same to read.
func (g Grant) covers(o Grant) bool {
	if g == o {
		return true
	}
	is, write := g.Path()
	want, writes := o.Path()
	return is != "" && is == want && write && !writes
}

// Gives reports whether a member's owner allows a grant.
func (m Member) Gives(g Grant) bool {
	for of, is := range m.Grants {
		if is.May && of.covers(g) {
			return true
		}
	}
	return false
}

// Withholds returns the first grant of a list that the member's owner does not allow, or "".
func (m Member) Withholds(all []Grant) Grant {
	for _, g := range all {
		if !m.Gives(g) {
			return g
		}
	}
	return ""
}

// NotGiven returns the reason that a host has no instance of a spec with a grant. The host is the
// subject.
func NotGiven(h HostName, g Grant) string {
	return fmt.Sprintf("does not give %s (`pando hosts allow %s %s`)", g, h, g)
}

// SetGrant returns the member after a change of a grant. changed is false if it was so already.
// ErrTooLarge: it has GrantsMax others. A grant that was taken away makes room.
func (m Member) SetGrant(of Grant, g Granting) (next Member, changed bool, err error) {
	is, there := m.Grants[of]
	if is.May == g.May {
		return m, false, nil
	}
	out := map[Grant]Granting{of: g}
	oldest := Grant("")
	for k, v := range m.Grants {
		if k == of {
			continue
		}
		out[k] = v
		if !v.May && (oldest == "" || v.At.Before(out[oldest].At)) {
			oldest = k
		}
	}
	if !there && len(out) > GrantsMax {
		if oldest == "" {
			return m, false, fmt.Errorf("%w: host %s gives %d grants, the most: take one away first "+
				"(`pando hosts deny`; `pando audit --grants` lists them)", ErrTooLarge, m.Name, GrantsMax)
		}
		delete(out, oldest)
	}
	m.Grants = out
	return m, true, nil
}

// GrantOperators changes the grants of hosts. Operators of a server's host alone may.
type GrantOperators interface {
	// SetGrant allows a host to give something to the instances there that ask for it, or ends
	// that. Running instances keep theirs. ErrNotFound: no such member.
	SetGrant(ctx context.Context, h HostName, g Grant, may bool, by Asker) error
}

// Device is a device file of a host that an instance may open.
type Device struct {
	Name  string `json:"name"` // below /dev
	Block bool   `json:"block,omitempty"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// CheckGrants returns nil if the grants of a spec fit together and to the rest of it.
func (s Spec) CheckGrants() error {
	if len(s.Grants) > GrantsMax {
		return fmt.Errorf("%w: %d grants: want at most %d", ErrInvalid, len(s.Grants), GrantsMax)
	}
	seen := map[Grant]bool{}
	paths := map[string]bool{}
	for _, g := range s.Grants {
		is, err := ParseGrant(string(g))
		if err != nil {
			return err
		}
		at, _ := g.Path()
		if is != g || seen[g] || paths[at] && at != "" {
			return fmt.Errorf("%w: the grant %s is here twice or not in its form %s", ErrInvalid, g, is)
		}
		seen[g], paths[at] = true, true
	}
	return nil
}

// HostNet reports whether the instances have the network of their host.
func (s Spec) HostNet() bool { return slices.Contains(s.Grants, GrantHostNet) }
