// Package recipe builds a container image from a short recipe, without a registry and without a
// daemon: a base, Debian packages that this machine has, programs with their libraries, and files.
//
// The same recipe, base, packages and files give the same bytes: entries are sorted, and have no
// times and no owner but root.
package recipe

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"

	"pando.run/pando"
)

// recipeMax bounds the size of a recipe.
const recipeMax = 1 << 20

// Recipe is the parts of an image and the words of its configuration.
type Recipe struct {
	// Base is a file of `docker save`, as docker-archive:FILE, or the folder of an OCI layout, as
	// oci:FOLDER. "": the image has no files but those of the recipe.
	Base string `yaml:"base"`
	// Packages are Debian packages that are installed here. Those that they depend on come with them.
	Packages []string `yaml:"packages"`
	// Programs are paths of this machine. Their shared libraries come with them.
	Programs []string `yaml:"programs"`
	// Files are files and folders here, relative to the recipe, with their paths in the image.
	Files map[string]string `yaml:"files"`
	// Users are names of users with their uids, for the image's /etc/passwd.
	Users map[string]uint32 `yaml:"users"`

	Entrypoint  []string          `yaml:"entrypoint"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	WorkingDir  string            `yaml:"working_dir"`
	User        string            `yaml:"user"`
	Ports       []string          `yaml:"ports"` // PORT or PORT/udp
	StopSignal  string            `yaml:"stop_signal"`
	Labels      map[string]string `yaml:"labels"`

	dir string // of the recipe
}

var (
	// The first line of a Containerfile behind its comments and empty lines.
	containerfile = regexp.MustCompile(`\A(\s*(#.*)?\n)*\s*(FROM|from|ARG|arg)\s+[^:\s]`)
	userName      = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	portText      = regexp.MustCompile(`^[0-9]{1,5}(/(tcp|udp))?$`)
)

// Read reads a recipe. Errors name the line.
func Read(file string) (Recipe, error) {
	r := Recipe{dir: filepath.Dir(file)}
	f, err := os.Open(file)
	if err != nil {
		return r, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, recipeMax+1))
	switch {
	case err != nil:
		return r, err
	case len(text) > recipeMax:
		return r, fmt.Errorf("%w: %s is larger than 1 MiB: name files in `files`", pando.ErrInvalid, file)
	case containerfile.Match(text):
		return r, fmt.Errorf("%w: %s is a Containerfile: build it with `buildah build` or `docker build`, "+
			"and name the file of `docker save` as docker-archive:FILE", pando.ErrInvalid, file)
	}
	d := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := d.Decode(&r); err != nil && err != io.EOF {
		return r, fmt.Errorf("%w: %s: %s", pando.ErrInvalid, file, yaml.FormatError(err, false, true))
	}
	if err := r.check(); err != nil {
		return r, fmt.Errorf("%w: %s: %w", pando.ErrInvalid, file, err)
	}
	return r, nil
}

// check returns the first word of a recipe that is wrong.
func (r Recipe) check() error {
	if len(r.Packages)+len(r.Programs)+len(r.Files) == 0 && r.Base == "" {
		return fmt.Errorf("the image would have no files: name packages, programs or files")
	}
	if len(r.Entrypoint)+len(r.Command) == 0 && r.Base == "" {
		return fmt.Errorf("command is missing: write the program and its arguments as a list")
	}
	for _, program := range r.Programs {
		if !path.IsAbs(program) {
			return fmt.Errorf("programs: %q is no absolute path", program)
		}
	}
	for from, to := range r.Files {
		if !path.IsAbs(to) || to == "/" {
			return fmt.Errorf("files: %s: want its absolute path in the image, such as /srv/%s", from,
				filepath.Base(from))
		}
	}
	for name, uid := range r.Users {
		if !userName.MatchString(name) || name == "root" || uid == 0 {
			return fmt.Errorf("users: %s: want a name in lower case with a uid above 0", name)
		}
	}
	for _, p := range r.Ports {
		if !portText.MatchString(p) {
			return fmt.Errorf("ports: %q: want PORT or PORT/udp", p)
		}
	}
	if user, _, _ := strings.Cut(r.User, ":"); user != "" && userName.MatchString(user) &&
		user != "root" && r.Base == "" && r.Users[user] == 0 {
		return fmt.Errorf("user: the image has no user %s: add users: {%s: 999}", user, user)
	}
	return nil
}
