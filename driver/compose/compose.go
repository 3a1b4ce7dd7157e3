// Package compose turns a Compose file into specs.
//
// compose-go reads the file, its .env and its env_files, merges anchors and extensions, and fills
// in variables. This package converts the result word by word. A word that Pando does not have is
// an error at its place in the file if the programs need it, else a warning. The package reads
// files in the folder of the Compose file only, and it starts nothing.
package compose

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/sirupsen/logrus"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// Bounds of a Compose file, beside those of spec.Plain.
const (
	servicesMax  = 500
	envFilesMax  = 32 // of one service
	envBytesMax  = 1 << 20
	problemsMax  = 50
	nodeVisitMax = 100_000 // of compose-go, after aliases
)

// Options choose a part of a Compose file.
type Options struct {
	Project  string   // instead of its own name; it becomes the tenant
	Profiles []string // services of these profiles are converted as well
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

// Is reports whether a file is a Compose file. A spec has no key `services`.
func Is(data []byte) bool { return isCompose.Match(data) }

// Parse converts a Compose file. Errors carry name; other files are relative to dir. With any error
// it returns spec.Problems.
func Parse(
	ctx context.Context, name string, data []byte, dir string, o Options,
) (Result, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if err := spec.Plain(name, data); err != nil {
		return Result{}, err
	}
	places, err := placesOf(name, data)
	if err != nil {
		return Result{}, err
	}
	if o.Overlay != "" {
		if err := spec.Plain(o.Overlay, o.Changes); err != nil {
			return Result{}, err
		}
		if places.over, err = placesOf(o.Overlay, o.Changes); err != nil {
			return Result{}, err
		}
	}
	c := &converter{places: places, dir: dir}
	if c.outside(); len(c.problems) > 0 {
		return Result{}, c.sorted(c.problems)
	}
	model, project, err := c.load(ctx, data, o)
	if err != nil {
		return Result{}, c.foreign(err)
	}
	c.project = project
	c.unset(data, c.environment)
	c.words(model)
	specs := c.specs()
	if len(c.problems) > 0 {
		return Result{}, c.sorted(c.problems)
	}
	return Result{Specs: specs, Warnings: c.sorted(c.warnings)}, nil
}

// converter collects the specs of one file, with its errors and warnings.
type converter struct {
	*places
	dir         string
	environment types.Mapping
	project     *types.Project
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

// outside denies the words that read further Compose files.
func (c *converter) outside() {
	const merged = "one file is converted at a time: " +
		"`docker compose config > FILE` writes a file with all of them in it"
	if c.has("include") {
		c.deny([]string{"include"}, "%s", merged)
	}
	for _, name := range c.keys("services") {
		if at := []string{"services", name, "extends", "file"}; c.has(at...) {
			c.deny(at, "%s", merged)
		}
		if at := []string{"services", name, "label_file"}; c.has(at...) {
			c.deny(at, "write the labels into `labels`")
		}
	}
	if n := len(c.keys("services")); n > servicesMax {
		c.deny([]string{"services"}, "has %d services: at most %d", n, servicesMax)
	}
}

// load returns the file as compose-go reads it: as a tree of words, and as a project.
func (c *converter) load(
	ctx context.Context, data []byte, o Options,
) (model map[string]any, project *types.Project, err error) {
	defer func() { // a panic of the library is an error in the file
		if p := recover(); p != nil {
			err = fmt.Errorf("the file cannot be read: %v", p)
		}
	}()
	logrus.SetOutput(io.Discard) // unset and words report the same, with its place
	if c.environment, err = c.variables(o.Environ); err != nil {
		return nil, nil, err
	}
	details := func() types.ConfigDetails {
		files := []types.ConfigFile{{Filename: filepath.Join(c.dir, "compose.yaml"), Content: data}}
		if o.Overlay != "" {
			files = append(files, types.ConfigFile{
				Filename: filepath.Join(c.dir, "compose.overlay.yaml"), Content: o.Changes,
			})
		}
		return types.ConfigDetails{WorkingDir: c.dir, Environment: c.environment, ConfigFiles: files}
	}
	settings := func(l *loader.Options) {
		l.SetProjectName(c.projectName(o.Project), true)
		l.Profiles, l.MaxNodeVisits = o.Profiles, nodeVisitMax
		l.SkipInclude, l.SkipResolveEnvironment, l.SkipResolveLabels = true, true, true
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
	if c.envFiles(project); len(c.problems) > 0 {
		return nil, nil, c.problems
	}
	project, err = project.WithServicesEnvironmentResolved(true)
	return model, project, err
}

// variables returns the variables of the caller and those of the file .env, which come second.
func (c *converter) variables(environ []string) (types.Mapping, error) {
	out := types.NewMapping(environ)
	path := filepath.Join(c.dir, ".env")
	text, err := c.inside(path)
	if os.IsNotExist(err) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	more, err := dotenv.ParseWithLookup(bytes.NewReader(text), out.Resolve)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for k, v := range more {
		if _, ok := out[k]; !ok {
			out[k] = v
		}
	}
	return out, nil
}

// inside reads a file in the folder of the Compose file. Links out of it are refused.
func (c *converter) inside(path string) ([]byte, error) {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	rel, err := filepath.Rel(c.dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, fmt.Errorf("%s is outside the folder of the Compose file: copy it there", path)
	}
	st, err := root.Stat(rel)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > envBytesMax {
		return nil, fmt.Errorf("%s: want a file of at most 1 MiB", path)
	}
	f, err := root.Open(rel)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, envBytesMax))
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

// projectName returns the name of the project: as asked for, as in the file, or that of the folder.
func (c *converter) projectName(asked string) string {
	if asked == "" {
		if name := c.text("name"); name != "" && !strings.Contains(name, "$") {
			asked = name
		} else {
			asked = filepath.Base(c.dir)
		}
	}
	return loader.NormalizeProjectName(asked)
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

// ordered sorts specs so that each comes after those that it needs. compose-go refuses cycles.
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
		out = append(out, s)
	}
	for _, n := range sortedKeys(all) {
		visit(n)
	}
	return out
}
