package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/calls"
	"pando.run/pando/driver/sandbox/process/wire"
)

// ociConfig is the part of a config.json that a bundle needs (runtime-spec 1.0).
type ociConfig struct {
	Version string     `json:"ociVersion"`
	Process ociProcess `json:"process"`
	Root    ociRoot    `json:"root"`
	Mounts  []ociMount `json:"mounts"`
	Linux   ociLinux   `json:"linux"`
}

type ociRoot struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"readonly"`
}

type ociProcess struct {
	Args          []string            `json:"args"`
	Env           []string            `json:"env"`
	Cwd           string              `json:"cwd"`
	User          ociUser             `json:"user"`
	NoPrivileges  bool                `json:"noNewPrivileges"`
	Capabilities  map[string][]string `json:"capabilities"`
	ResourceLimit []ociLimit          `json:"rlimits,omitempty"`
}

type ociUser struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"additionalGids,omitempty"`
	Umask  *uint32  `json:"umask,omitempty"`
}

type ociLimit struct {
	Type string `json:"type"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

type ociMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

type ociLinux struct {
	Namespaces []ociNamespace       `json:"namespaces"`
	Seccomp    *calls.RuntimeFilter `json:"seccomp,omitempty"`
	Hidden     []string             `json:"maskedPaths,omitempty"`
	ReadOnly   []string             `json:"readonlyPaths,omitempty"`
}

// ociNamespace is a new namespace, or the one at a path. The program keeps those of the sandbox
// that the list lacks.
type ociNamespace struct {
	Type string `json:"type"`
	Path string `json:"path,omitempty"`
}

// ociCapabilities names the capabilities of root of an image, as imageRoot has them.
var ociCapabilities = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"}

// runtimeConfig returns the config.json of a program. Its root is already stacked.
func (s *shim) runtimeConfig(p wire.Program) ociConfig {
	c := ociConfig{Version: "1.0.0", Process: s.runtimeProcess(p), Root: ociRoot{s.top, p.ReadOnly}}
	shared := func(at string, options ...string) {
		c.Mounts = append(c.Mounts, ociMount{at, "none", at, append(options, "rbind")})
	}
	shared("/dev")
	shared("/sys")
	c.Linux.Namespaces = []ociNamespace{{Type: "mount"}}
	if p.Init {
		shared("/proc")
	} else { // the program is PID 1 (first.go)
		c.Linux.Namespaces = append(c.Linux.Namespaces, ociNamespace{Type: "pid"})
		c.Mounts = append(c.Mounts,
			ociMount{"/proc", "proc", "proc", []string{"nosuid", "nodev", "noexec"}})
		c.Linux.Hidden, c.Linux.ReadOnly = filesBelow("/proc", procHidden), filesBelow("/proc", procReadOnly)
	}
	if len(p.Secrets) > 0 {
		shared(secretsFolder, "ro", "nosuid", "nodev", "noexec")
	}
	if len(p.Configs) > 0 {
		shared(pando.ConfigsFolder, "ro", "nosuid", "nodev", "noexec")
	}
	if p.Users != nil {
		c.Linux.Namespaces = append(c.Linux.Namespaces,
			ociNamespace{"user", fmt.Sprintf("/proc/1/fd/%d", s.users)})
	}
	if !p.Open {
		c.Linux.Seccomp = calls.ForRuntime()
	}
	return c
}

// runtimeProcess returns a program, or a command beside it, as the runtime starts it.
func (s *shim) runtimeProcess(p wire.Program) ociProcess {
	out := ociProcess{Args: p.Argv, Env: p.Env, Cwd: p.Dir, User: ociUser{UID: p.UID, GID: p.GID, Groups: p.Groups},
		NoPrivileges: true, Capabilities: map[string][]string{}}
	var has []string
	if p.Users != nil && p.UID == 0 {
		has = ociCapabilities
	}
	for _, set := range []string{"bounding", "effective", "permitted"} {
		out.Capabilities[set] = append([]string{}, has...)
	}
	for _, set := range []string{"inheritable", "ambient"} {
		out.Capabilities[set] = []string{}
	}
	if s.files != nil {
		out.ResourceLimit = []ociLimit{{"RLIMIT_NOFILE", s.files.Cur, s.files.Max}}
	}
	if mask, err := maskOf(p.Umask); err == nil && mask >= 0 {
		own := uint32(mask)
		out.User.Umask = &own
	}
	if all, err := within(p.Limits); err == nil {
		for _, l := range all {
			name := "RLIMIT_" + strings.ToUpper(l.name)
			out.ResourceLimit = slices.DeleteFunc(out.ResourceLimit,
				func(o ociLimit) bool { return o.Type == name })
			out.ResourceLimit = append(out.ResourceLimit, ociLimit{name, l.bound.Cur, l.bound.Max})
		}
	}
	return out
}

func writeJSON(file string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}
