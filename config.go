package pando

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bounds of the configs of a spec. They hold for the text in the spec and for the rendered files.
const (
	ConfigsMax      = 32        // of one spec
	ConfigBytesMax  = 128 << 10 // of one config
	ConfigsBytesMax = 256 << 10 // of all configs of one instance
	// ConfigSourcesMax bounds the services that the templates of one spec name.
	ConfigSourcesMax = 64
)

// ConfigsFolder is the folder of an instance with its configs. A candidate waits below it, in
// ConfigsNext, while its check runs.
const (
	ConfigsFolder = "/run/configs"
	ConfigsNext   = ConfigsFolder + "/.next"
)

// ConfigKept begins the reason of an instance that keeps an older content of a config.
const ConfigKept = "it keeps its former "

// Config is a file of a spec that the program finds as /run/configs/NAME.
type Config struct {
	Name string `json:"name"`
	// Text is the content of the file, or the template of it.
	Text string `json:"text"`
	// Template makes Text a template over services, secrets and the spec (package spec/config).
	Template bool `json:"template,omitempty"`
	// Target is a second path of the file in the instance. "": none.
	Target string `json:"target,omitempty"`
	// Mode is the permissions: 0444, and 0400 for a template with a secret.
	Mode uint32 `json:"mode,omitempty"`
	// Check is a command inside the instance that decides about the content: before the program
	// starts, and before a new content replaces it. The word {} is the path of the file. None: every
	// content is good.
	Check []string `json:"check,omitempty"`
	// OnChange is the signal that the program gets after a new content is in the file. "": none.
	OnChange string `json:"on_change,omitempty"`
}

// ConfigFile is a rendered config of one instance.
type ConfigFile struct {
	Name    string `json:"name"`
	Content []byte `json:"content"`
	Target  string `json:"target,omitempty"`
	Mode    uint32 `json:"mode"`
	// Check is as in Config. Its words {} are not replaced yet.
	Check []string `json:"check,omitempty"`
}

// ConfigCheckMax is the time for one check.
const ConfigCheckMax = 10 * time.Second

// CheckOf returns the check of a file at a path.
func (f ConfigFile) CheckOf(at string) []string {
	command := make([]string, len(f.Check))
	for n, word := range f.Check {
		command[n] = strings.ReplaceAll(word, "{}", at)
	}
	return command
}

// ConfigChange is a new content of a config of a running instance.
type ConfigChange struct {
	ConfigFile
	OnChange string
}

// Templated reports whether a config of the spec is a template.
func (s Spec) Templated() bool {
	return slices.ContainsFunc(s.Configs, func(c Config) bool { return c.Template })
}

// CheckFailed is the answer of the check of a config that refused its content.
type CheckFailed struct {
	Config  string   `json:"config"` // its name
	Command []string `json:"command"`
	Code    int      `json:"code"`
	Output  []byte   `json:"output,omitempty"` // the first 4 KiB; it may quote the file
	Late    bool     `json:"late,omitempty"`   // it was ended after ConfigCheckMax
}

// Error returns the command and its exit code, without the output.
func (e *CheckFailed) Error() string {
	if e.Late {
		return fmt.Sprintf("its check %s did not end within %s", strings.Join(e.Command, " "),
			ConfigCheckMax)
	}
	return fmt.Sprintf("its check %s exited with %d", strings.Join(e.Command, " "), e.Code)
}

// Is reports that a failed check is an ErrRefused.
func (*CheckFailed) Is(target error) bool { return target == ErrRefused }
