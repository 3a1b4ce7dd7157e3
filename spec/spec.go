// Package spec reads an operator's spec of a service from YAML, in Compose's words where Compose
// has one.
//
// One table (fields.go) describes every field. The parser, the JSON Schema, the reference and
// Format are made from it.
//
// Of the machine, the package reads the files of `configs` and `env_file` alone. The host of the
// service finds out whether a program exists or a port is free.
package spec

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"pando.run/pando"
	"pando.run/pando/spec/nearest"
)

// Bounds of a file. The depth keeps a hostile file from exhausting the stack of the YAML parser.
const (
	fileBytesMax = 1 << 20
	depthMax     = 100
	problemsMax  = 50
)

// Problem is one error in a file.
type Problem struct {
	File         string
	Line, Column int    // from 1
	Path         string // health.ready; "" for the file as a whole
	Message      string
}

// Error returns the problem with its place in the file.
func (p Problem) Error() string {
	s := fmt.Sprintf("%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Path != "" {
		s += p.Path + ": "
	}
	return s + p.Message
}

// Problems is every error in a file, in the order of the file. It is a pando.ErrInvalid.
type Problems []Problem

// Error returns all problems, one per line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Is reports that the problems are a pando.ErrInvalid.
func (Problems) Is(target error) bool { return target == pando.ErrInvalid }

// Load reads the services of a file, one per YAML document. A relative working_dir is relative to
// the file.
func Load(ctx context.Context, path string) ([]pando.Spec, error) {
	data, err := Read(ctx, path)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("read the spec %s: %w", path, err)
	}
	all, err := Parse(path, data, dir)
	if err != nil && isOther(path) {
		return nil, fmt.Errorf("%w\n%s has not the name of a spec: a spec is a YAML file with name and "+
			"command or image, such as pando.yaml; `pando spec schema` prints all its keys", err, path)
	}
	return all, err
}

// isOther reports whether a path has the extension of another kind of file. A pipe has none.
func isOther(path string) bool {
	ext := strings.ToLower(filepath.Ext(path))
	return !slices.Contains([]string{"", ".yaml", ".yml", ".json"}, ext)
}

// Read reads the file at a path of any kind. It waits for the writer of a pipe until ctx ends. It
// returns at most a byte more than Plain allows, also of an endless file.
func Read(ctx context.Context, path string) ([]byte, error) {
	data, err := await(ctx, func() ([]byte, error) { return readBounded(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil, absent(path)
	}
	return data, err
}

// absent returns the error of a spec that is not there, with the name of a file that is.
func absent(path string) error {
	next := "`pando spec schema` prints the keys of a spec, and examples/hello/pando.yaml is a small one"
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the spec: %w: there is no folder %s for the file %s", pando.ErrNotFound,
			dir, path)
	}
	var names []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml") {
			names = append(names, e.Name())
		}
	}
	best := nearest.Word(filepath.Base(path), names)
	if best == "" && len(names) == 1 {
		best = names[0]
	}
	if best != "" {
		next = "did you mean " + filepath.Join(dir, best) + "?"
	}
	return fmt.Errorf("read the spec: %w: there is no file %s; %s", pando.ErrNotFound, path, next)
}

// ReadFrom reads a spec from an open stream, within the limits of Read.
func ReadFrom(ctx context.Context, r io.Reader) ([]byte, error) {
	return await(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(r, fileBytesMax+1)) })
}

// await reads until ctx ends.
func await(ctx context.Context, all func() ([]byte, error)) ([]byte, error) {
	type read struct {
		data []byte
		err  error
	}
	done := make(chan read, 1)
	go func() {
		data, err := all()
		done <- read{data, err}
	}()
	select {
	case r := <-done:
		if r.err != nil && !errors.Is(r.err, fs.ErrNotExist) && !errors.Is(r.err, fs.ErrPermission) {
			return nil, fmt.Errorf("%w: read the spec: %w", pando.ErrInvalid, r.err)
		}
		if r.err != nil {
			return nil, fmt.Errorf("read the spec: %w", r.err)
		}
		return r.data, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return nil, fmt.Errorf("%s is a folder: name the file in it, such as %s",
			path, filepath.Join(path, "pando.yaml"))
	}
	return io.ReadAll(io.LimitReader(f, fileBytesMax+1))
}

const tooLarge = "the file is larger than 1 MiB: a spec is a page of text"

// Parse reads the services in data. Errors carry name. A relative working_dir is relative to dir.
// With any error it returns no spec, only Problems.
func Parse(name string, data []byte, dir string) ([]pando.Spec, error) {
	return parse(name, data, dir, nil)
}

func parse(name string, data []byte, dir string, over *overlay) ([]pando.Spec, error) {
	r := &reader{file: name, dir: dir}
	file := r.documents(data)
	if file == nil {
		return nil, r.problems
	}
	if over != nil && !over.lay(r, file) {
		return nil, r.problems
	}
	var specs []pando.Spec
	seen := map[pando.ServiceKey]bool{}
	for _, doc := range file.Docs {
		if isEmpty(doc) {
			continue
		}
		s, where := r.service(doc.Body)
		if s.Name != "" && seen[s.Key()] {
			r.at(where, "name", "service %s is in this file twice", s.Key())
		}
		seen[s.Key()] = true
		specs = append(specs, s)
	}
	if len(specs) == 0 && len(r.problems) == 0 {
		r.add(1, 1, "", "there is no service in this file: it needs at least name and command")
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b Problem) int {
			return cmp.Or(cmp.Compare(a.File, b.File), a.Line-b.Line, a.Column-b.Column)
		})
		return nil, r.problems[:min(len(r.problems), problemsMax)]
	}
	return specs, nil
}

// documents reads the YAML of a file. It returns nil after a problem.
func (r *reader) documents(data []byte) *ast.File {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // some editors begin a UTF-8 file with it
	if !r.acceptable(data) {
		return nil
	}
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.syntax(err, data)
		return nil
	}
	return file
}

func isEmpty(doc *ast.DocumentNode) bool {
	return doc.Body == nil || doc.Body.Type() == ast.NullType ||
		doc.Body.Type() == ast.CommentType
}

// Plain returns nil if the data may reach a YAML parser, else Problems. The text is then UTF-8, at
// most 1 MiB, and not nested deeply.
func Plain(name string, data []byte) error {
	r := &reader{file: name}
	if !r.acceptable(bytes.TrimPrefix(data, []byte("\ufeff"))) {
		return r.problems
	}
	return nil
}

// acceptable reports whether the data may reach the YAML parser.
func (r *reader) acceptable(data []byte) bool {
	if len(data) > fileBytesMax {
		r.add(1, 1, "", tooLarge)
		return false
	}
	wrong := func(i int, format string, args ...any) bool {
		r.add(1+bytes.Count(data[:i], []byte("\n")), i-bytes.LastIndexByte(data[:i], '\n'), "", format,
			args...)
		return false
	}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return wrong(0, "the file is in UTF-16: save it as UTF-8")
	}
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return wrong(i, "a NUL byte: this is not a text file")
	}
	if i := len(data) - len(afterText(data)); i < len(data) {
		return wrong(i, "the byte 0x%x is not UTF-8: save the file as UTF-8", data[i])
	}
	line, depth := 0, 0
	for text := range bytes.Lines(data) {
		line++
		depth += bytes.Count(text, []byte("[")) + bytes.Count(text, []byte("{")) -
			bytes.Count(text, []byte("]")) - bytes.Count(text, []byte("}"))
		indent := len(text) - len(bytes.TrimLeft(text, " -?"))
		nested := bytes.Count(text, []byte("[")) + bytes.Count(text, []byte("{"))
		if max(depth, nested) > depthMax || indent > 2*depthMax {
			r.add(line, 1, "", "nested deeper than %d levels", depthMax)
			return false
		}
		depth = max(0, depth)
	}
	return true
}

// afterText returns data from its first byte that is not UTF-8.
func afterText(data []byte) []byte {
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		if r == utf8.RuneError && n == 1 {
			break
		}
		data = data[n:]
	}
	return data
}

// syntax reports why the file is not YAML.
func (r *reader) syntax(err error, data []byte) {
	line, column, text := 1, 1, err.Error()
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil {
		line, column, text = y.GetToken().Position.Line, y.GetToken().Position.Column, y.GetMessage()
	}
	n := 0
	for l := range bytes.Lines(data) {
		n++
		if i := bytes.IndexByte(l, '\t'); i >= 0 && len(bytes.TrimLeft(l[:i], " ")) == 0 {
			line, column, text = n, i+1, "a tab indents this line: use spaces"
			break
		}
	}
	r.add(line, column, "", "%s", inWords(text))
}

// phrases maps the YAML parser's messages for common slips to plain words.
var phrases = map[string]string{
	"sequence end token ']' not found":              "a list that begins with [ has no ]",
	"could not find flow mapping end token '}'":     "a map that begins with { has no }",
	"could not find end character of double-quoted": "a quote \" does not end",
	"could not find end character of single-quoted": "a quote ' does not end",
	"unexpected key name": "this line is not `key: value`, or its " +
		"indentation is wrong",
	"non-map value is specified": "this line is not `key: value`, or " +
		"its indentation is wrong",
	"value is not allowed in this context": "a colon or a value is in the wrong place: put a text " +
		"with a colon in quotes, and check the indentation",
}

// inWords returns a message of the YAML parser in plain words.
func inWords(text string) string {
	for its, ours := range phrases {
		if strings.Contains(text, its) {
			return ours
		}
	}
	return text
}
