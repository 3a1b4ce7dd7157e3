// Package compose turns a Compose file into specs.
//
// compose-go reads the file and the files that it includes or extends, its .env and its env_files,
// merges anchors and extensions, and fills in variables. This package converts the result word by
// word. The table in words.go has every word of Compose. A word that Pando does not have is an
// error at its place in the file if the programs need it, else a warning. The package reads files
// in the folders of the Compose files only, and it starts nothing.
package compose

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/sirupsen/logrus"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// Bounds of a Compose file, beside those of spec.Plain.
const (
	servicesMax  = 500
	filesMax     = 64 // merged, included and extended
	envFilesMax  = 32 // of one service
	envBytesMax  = 1 << 20
	problemsMax  = 50
	nodeVisitMax = 100_000 // of compose-go, after aliases
)

// Options choose a part of a Compose file.
type Options struct {
	Project  string   // instead of its own name; it becomes the tenant
	Profiles []string // services of these profiles are converted as well; "*": of all. Default: COMPOSE_PROFILES
	Environ  []string // NAME=value, before the file .env
	// Overlay is the name of a second file, and Changes are its words. They are merged into the first
	// file as Compose merges files. "": none.
	Overlay string
	Changes []byte
}

// Result is a converted Compose file.
type Result struct {
	Specs []pando.Spec // a service comes after those that it needs
	// Warnings name the words that are left out and change little.
	Warnings spec.Problems
}

var isCompose = regexp.MustCompile(`(?m)^["']?(services|include)["']?[ \t]*:`)

// Is reports whether a file is a Compose file, in YAML or in JSON. A spec has no key `services`.
func Is(data []byte) bool {
	data = plain(data)
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		return isCompose.Match(data)
	}
	if spec.Plain("", data) != nil {
		return false
	}
	p, err := placesOf("", data)
	return err == nil && (p.has("services") || p.has("include"))
}

// plain returns a file without the byte order mark that some editors write.
func plain(data []byte) []byte { return bytes.TrimPrefix(data, []byte("\ufeff")) }

// Parse converts a Compose file, with the files that it names and the override file next to it.
// Errors carry name; other files are relative to dir. With any error it returns spec.Problems.
func Parse(
	ctx context.Context, name string, data []byte, dir string, o Options,
) (Result, error) {
	c := &converter{files: &files{dir: dir, main: name}}
	if err := c.read(plain(data), o); err != nil {
		return Result{}, c.foreign(err)
	}
	model, project, err := c.load(ctx, o)
	if err != nil {
		return Result{}, c.foreign(err)
	}
	c.project = project
	c.names, c.lenders = c.serviceNames(), c.lent()
	c.unset()
	c.words(model)
	specs := c.specs()
	if len(c.problems) > 0 {
		return Result{}, c.sorted(c.problems)
	}
	return Result{Specs: specs, Warnings: c.sorted(c.warnings)}, nil
}

// converter collects the specs of one project, with its errors and warnings.
type converter struct {
	*files
	environment types.Mapping
	project     *types.Project
	names       map[string]pando.ServiceName // of the services that are enabled
	lenders     map[string]string            // the services of volumes that several services have
	taken       map[pando.HostPort]string    // the ports of the hosts, with their services
	problems    spec.Problems
	warnings    spec.Problems
}

// deny adds an error at a path of the file, once.
func (c *converter) deny(path []string, format string, args ...any) {
	add(&c.problems, c.problem(path, fmt.Sprintf(format, args...)))
}

// warn adds a warning at a path of the file, once.
func (c *converter) warn(path []string, format string, args ...any) {
	add(&c.warnings, c.problem(path, fmt.Sprintf(format, args...)))
}

func add(to *spec.Problems, p spec.Problem) {
	if !slices.Contains(*to, p) {
		*to = append(*to, p)
	}
}

func (c *converter) sorted(all spec.Problems) spec.Problems {
	slices.SortStableFunc(all, func(a, b spec.Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return all[:min(len(all), problemsMax)]
}

// load returns the project as compose-go reads it: as a tree of words, and as a project.
func (c *converter) load(
	ctx context.Context, o Options,
) (model map[string]any, project *types.Project, err error) {
	defer func() { // a panic of the library is an error in the file
		if p := recover(); p != nil {
			err = fmt.Errorf("the file cannot be read: %v", p)
		}
	}()
	logrus.SetOutput(io.Discard) // unset and words report the same, with its place
	details := func() types.ConfigDetails {
		var all []types.ConfigFile
		for _, f := range c.merged {
			all = append(all, types.ConfigFile{Filename: f.path, Content: append([]byte{}, f.data...)})
		}
		return types.ConfigDetails{WorkingDir: c.dir, Environment: c.environment, ConfigFiles: all}
	}
	settings := func(l *loader.Options) {
		l.SetProjectName(c.projectName(o.Project), true)
		l.Profiles, l.MaxNodeVisits = c.profiles(o.Profiles), nodeVisitMax
		l.SkipResolveEnvironment, l.SkipResolveLabels = true, true
	}
	model, err = loader.LoadModelWithContext(ctx, details(), settings, func(l *loader.Options) {
		l.SkipNormalization, l.SkipDefaultValues = true, true
	})
	if err != nil {
		return nil, nil, err
	}
	if project, err = loader.LoadWithContext(ctx, details(), settings); err != nil {
		return nil, nil, err
	}
	if n := len(project.AllServices()); n > servicesMax {
		c.deny([]string{"services"}, "has %d services: at most %d", n, servicesMax)
		return nil, nil, c.problems
	}
	c.envFiles(project)
	if c.labelFiles(project); len(c.problems) > 0 {
		return nil, nil, c.problems
	}
	if project, err = project.WithServicesLabelsResolved(true); err != nil {
		return nil, nil, err
	}
	project, err = project.WithServicesEnvironmentResolved(true)
	return model, project, err
}

// envFiles checks the files of variables before compose-go reads them.
func (c *converter) envFiles(p *types.Project) {
	for name, s := range p.Services {
		at := []string{"services", name, "env_file"}
		if len(s.EnvFiles) > envFilesMax {
			c.deny(at, "has %d files: at most %d", len(s.EnvFiles), envFilesMax)
			continue
		}
		for _, f := range s.EnvFiles {
			_, err := c.inside(f.Path)
			switch {
			case err == nil, os.IsNotExist(err) && !bool(f.Required):
			case os.IsNotExist(err):
				c.deny(at, "%s does not exist: make it, or write required: false beside its path", f.Path)
			default:
				c.deny(at, "%v", err)
			}
		}
	}
}

// labelFiles checks the files of labels before compose-go reads them.
func (c *converter) labelFiles(p *types.Project) {
	for name, s := range p.Services {
		for _, path := range s.LabelFiles {
			if _, err := c.inside(path); err != nil {
				c.deny([]string{"services", name, "label_file"}, "%v", err)
			}
		}
	}
}

// projectName returns the name of the project: as asked for, as COMPOSE_PROJECT_NAME or the file
// says, or that of the folder.
func (c *converter) projectName(asked string) string {
	asked = cmp.Or(asked, c.environment["COMPOSE_PROJECT_NAME"])
	if name, err := template.Substitute(c.text("name"), c.environment.Resolve); err == nil {
		asked = cmp.Or(asked, name)
	}
	return loader.NormalizeProjectName(cmp.Or(asked, filepath.Base(c.dir)))
}

// profiles returns the profiles that are enabled.
func (c *converter) profiles(asked []string) []string {
	if len(asked) == 0 {
		asked = strings.Split(c.environment["COMPOSE_PROFILES"], ",")
	}
	var out []string
	for _, p := range asked {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}

// tenant returns the tenant of the project.
func (c *converter) tenant() pando.Tenant {
	return pando.Tenant(strings.Trim(strings.ReplaceAll(c.project.Name, "_", "-"), "-"))
}

// specs returns the specs of all services that are enabled, each after those that it needs.
func (c *converter) specs() []pando.Spec {
	if err := pando.CheckLabel("tenant", string(c.tenant())); err != nil {
		c.deny([]string{"name"}, "the project becomes a tenant: %v; choose one with --project", err)
	}
	if len(c.project.Services) == 0 {
		c.deny([]string{"services"}, "no service is enabled: choose some with --profile")
	}
	all := map[pando.ServiceName]pando.Spec{}
	for _, name := range c.project.ServiceNames() {
		s := c.service(c.project.Services[name])
		all[s.Name] = s
	}
	return c.ordered(all)
}

// ordered sorts specs so that each comes after those that it needs, and after those whose volumes
// it has. compose-go refuses cycles.
func (c *converter) ordered(all map[pando.ServiceName]pando.Spec) []pando.Spec {
	var out []pando.Spec
	done := map[pando.ServiceName]bool{}
	var visit func(n pando.ServiceName)
	visit = func(n pando.ServiceName) {
		s, there := all[n]
		if done[n] || !there {
			return
		}
		done[n] = true
		for _, needed := range sortedKeys(s.Needs) {
			visit(needed)
		}
		for _, v := range s.Volumes {
			visit(v.Of)
		}
		out = append(out, s)
	}
	for _, n := range sortedKeys(all) {
		visit(n)
	}
	return out
}
