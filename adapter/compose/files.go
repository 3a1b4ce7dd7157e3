package compose

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/goccy/go-yaml/ast"

	"pando.run/pando/spec"
)

// file is one Compose file of a project.
type file struct {
	*places
	path string // absolute
	data []byte
}

// files are the Compose files of a project: those that are merged, and those that they include or
// extend.
type files struct {
	dir    string
	main   string // the name of the first file, as the caller wrote it
	merged []*file
	others []*file
	// roots are the folders whose files the project may read: each has a Compose file of it.
	roots []string
	// included are the variables that only included files have.
	included map[string]string
}

// read reads the variables and the Compose files of a project.
func (c *converter) read(data []byte, o Options) (err error) {
	c.roots, c.included = []string{c.dir}, map[string]string{}
	first := &file{path: filepath.Join(c.dir, filepath.Base(c.main)), data: data}
	if first.places, err = readPlaces(c.main, data); err != nil {
		return err
	}
	c.merged = []*file{first}
	if c.environment, err = c.variables(o.Environ); err != nil {
		return err
	}
	if err := c.overrides(first); err != nil {
		return err
	}
	if o.Overlay != "" {
		over := &file{path: filepath.Join(c.dir, filepath.Base(o.Overlay)), data: plain(o.Changes)}
		if over.places, err = readPlaces(o.Overlay, over.data); err != nil {
			return err
		}
		c.merged = append(c.merged, over)
	}
	for _, f := range c.merged {
		if err := c.follow(f, c.dir); err != nil {
			return err
		}
	}
	return nil
}

// readPlaces checks a file and reads its places.
func readPlaces(name string, data []byte) (*places, error) {
	if err := spec.Plain(name, data); err != nil {
		return nil, err
	}
	return placesOf(name, data)
}

// overrides adds the files that Compose merges with the first one by itself: those of COMPOSE_FILE,
// or the override file next to a file with one of Compose's usual names.
func (c *converter) overrides(first *file) error {
	names := c.composeFiles()
	if at := slices.Index(names, filepath.Base(c.main)); at >= 0 {
		c.merged = nil
		for _, name := range names {
			if name == filepath.Base(c.main) {
				c.merged = append(c.merged, first)
				continue
			}
			if err := c.merge(name); err != nil {
				return err
			}
		}
		return nil
	}
	if len(names) > 0 || !slices.Contains(cli.DefaultFileNames, filepath.Base(c.main)) {
		return nil
	}
	for _, name := range cli.DefaultOverrideFileNames {
		if _, err := os.Lstat(filepath.Join(c.dir, name)); err == nil {
			return c.merge(name)
		}
	}
	return nil
}

// composeFiles returns the names of COMPOSE_FILE.
func (c *converter) composeFiles() (out []string) {
	between := cmp.Or(c.environment["COMPOSE_PATH_SEPARATOR"], string(os.PathListSeparator))
	for name := range strings.SplitSeq(c.environment["COMPOSE_FILE"], between) {
		if name != "" {
			out = append(out, filepath.Clean(name))
		}
	}
	return out
}

// merge adds a file that is merged with the first one.
func (c *converter) merge(name string) error {
	f, err := c.open(filepath.Join(c.dir, name))
	if err == nil {
		c.merged = append(c.merged, f)
	}
	return err
}

// open reads a further Compose file. It may lie in any folder.
func (c *converter) open(path string) (*file, error) {
	shown := path
	if rel, err := filepath.Rel(c.dir, path); err == nil {
		shown = filepath.Join(filepath.Dir(c.main), rel)
	}
	if len(c.merged)+len(c.others) >= filesMax {
		return nil, fmt.Errorf("the project has more than %d Compose files", filesMax)
	}
	c.roots = append(c.roots, filepath.Dir(path))
	data, err := c.inside(path)
	if err != nil {
		return nil, err
	}
	f := &file{path: path, data: plain(data)}
	f.places, err = readPlaces(shown, f.data)
	return f, err
}

// follow reads the files that a file includes or extends. compose-go reads them again: what it
// cannot read well is refused here, with its place.
func (c *converter) follow(f *file, dir string) error {
	for _, one := range f.includes() {
		if err := c.include(f, one, dir); err != nil {
			return err
		}
	}
	for _, name := range f.keys("services") {
		path := []string{"services", name, "extends", "file"}
		text, err := template.Substitute(f.text(path...), c.environment.Resolve)
		if err != nil {
			return spec.Problems{f.problem(path, err.Error())}
		}
		if text == "" {
			continue
		}
		if err := c.another(f, path, text, dir, filepath.Dir(absolute(dir, text))); err != nil {
			return err
		}
	}
	return nil
}

// include follows one element of `include`, relative to dir. An included file's own names are
// relative to its project's folder.
func (c *converter) include(f *file, one included, dir string) error {
	at := []string{"include"}
	envFiles := one.envFiles
	inner := ""
	for n, path := range one.paths {
		path, err := template.Substitute(path, c.environment.Resolve)
		if err != nil {
			return spec.Problems{f.problem(at, err.Error())}
		}
		if n == 0 {
			inner = filepath.Dir(absolute(dir, path))
			if one.project != "" {
				inner = absolute(dir, one.project) // names begin there; it gives no right to read
			}
		}
		if err := c.another(f, at, path, dir, inner); err != nil {
			return err
		}
	}
	if own := filepath.Join(inner, ".env"); len(envFiles) == 0 && inner != "" {
		if _, err := os.Lstat(own); err == nil {
			envFiles = []string{own}
		}
	}
	for _, path := range envFiles {
		if path == os.DevNull {
			continue
		}
		text, err := c.inside(absolute(dir, path))
		if err != nil {
			return spec.Problems{f.problem(at, fmt.Sprintf("env_file: %v", err))}
		}
		own, err := dotenv.ParseWithLookup(bytes.NewReader(text), c.environment.Resolve)
		if err != nil {
			return spec.Problems{f.problem(at, fmt.Sprintf("env_file: %s: %v", path, err))}
		}
		maps.Copy(c.included, own)
	}
	return nil
}

// another reads a Compose file that another one names, relative to dir, and those that it names
// itself, relative to inner.
func (c *converter) another(f *file, at []string, name, dir, inner string) error {
	if strings.Contains(name, "://") || strings.HasPrefix(name, "git@") {
		return spec.Problems{f.problem(at, name+" is on another machine: copy it next to this file")}
	}
	path := absolute(dir, name)
	known := slices.Concat(c.merged, c.others)
	if slices.ContainsFunc(known, func(o *file) bool { return o.path == path }) {
		return nil // compose-go finds the circles
	}
	more, err := c.open(path)
	if problems, ok := errors.AsType[spec.Problems](err); ok {
		return problems
	}
	if os.IsNotExist(err) {
		err = fmt.Errorf("%s does not exist: make it", path)
	}
	if err != nil {
		return spec.Problems{f.problem(at, err.Error())}
	}
	c.others = append(c.others, more)
	return c.follow(more, inner)
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// included is one element of `include`.
type included struct {
	paths, envFiles []string
	project         string
}

// includes returns the elements of `include`.
func (p *places) includes() (out []included) {
	at, whole := p.find([]string{"include"})
	if !whole {
		return nil
	}
	for _, n := range p.elements(at.Value) {
		if text, ok := p.scalar(n); ok {
			out = append(out, included{paths: []string{text}})
			continue
		}
		var one included
		for word, to := range map[string]*[]string{"path": &one.paths, "env_file": &one.envFiles} {
			v := p.entry(n, word, 0)
			if v == nil {
				continue
			}
			for _, e := range p.elements(v.Value) {
				if text, ok := p.scalar(e); ok {
					*to = append(*to, text)
				}
			}
		}
		if v := p.entry(n, "project_directory", 0); v != nil {
			one.project, _ = p.scalar(v.Value)
		}
		out = append(out, one)
	}
	return out
}

// elements returns the elements of a list, or a single value as the only one.
func (p *places) elements(n ast.Node) []ast.Node {
	switch m := p.resolved(n).(type) {
	case *ast.SequenceNode:
		return m.Values
	case nil:
		return nil
	default:
		return []ast.Node{m}
	}
}

func (p *places) scalar(n ast.Node) (string, bool) {
	switch m := p.resolved(n).(type) {
	case *ast.StringNode:
		return m.Value, true
	case *ast.LiteralNode:
		return m.Value.Value, true
	}
	return "", false
}

// variables returns the variables of the caller and those of the file .env, which come second.
// COMPOSE_ENV_FILES names other files, and COMPOSE_DISABLE_ENV_FILE leaves .env out.
func (c *converter) variables(environ []string) (types.Mapping, error) {
	out := types.NewMapping(environ)
	names, named := []string{".env"}, false
	if text := out["COMPOSE_ENV_FILES"]; text != "" {
		names, named = strings.Split(text, ","), true
	} else if on := out["COMPOSE_DISABLE_ENV_FILE"]; on == "1" || strings.EqualFold(on, "true") {
		return out, nil
	}
	more := map[string]string{}
	for _, name := range names {
		path := absolute(c.dir, name)
		text, err := c.inside(path)
		if os.IsNotExist(err) && !named {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		read, err := dotenv.ParseWithLookup(bytes.NewReader(text), func(k string) (string, bool) {
			if v, ok := out.Resolve(k); ok {
				return v, true
			}
			v, ok := more[k]
			return v, ok
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for k, v := range read { // a later file comes first
			more[k] = v
		}
	}
	for k, v := range more {
		if _, ok := out[k]; !ok {
			out[k] = v
		}
	}
	return out, nil
}

// inside reads a file in a folder of a Compose file. Links out of the folder are refused.
func (c *converter) inside(path string) ([]byte, error) {
	path = filepath.Clean(path)
	err := fmt.Errorf("%s is outside the folder of the Compose file: copy it there", path)
	for _, dir := range slices.Backward(c.roots) {
		rel, e := filepath.Rel(dir, path)
		if e != nil || !filepath.IsLocal(rel) {
			continue
		}
		var text []byte
		if text, err = insideOf(dir, rel, path); err == nil {
			return text, nil
		}
	}
	return nil, err
}

func insideOf(dir, rel, path string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
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
