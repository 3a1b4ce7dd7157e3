// Package spec reads what an operator wants of a service from YAML. Its words are Compose's wherever Compose has the word.
//
// One table (fields.go) describes every field: the parser, the JSON Schema, the reference and Format are made from it. The
// package never looks at the machine: whether a program exists or a port is free is found out where the service runs.
package spec

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"pando.run/pando"
)

// Bounds of a file. The depth keeps a hostile file from exhausting the stack of the YAML parser.
const (
	fileBytesMax = 1 << 20
	depthMax     = 100
	problemsMax  = 50
)

// Problem is one thing that is wrong in a file.
type Problem struct {
	File         string
	Line, Column int    // from 1
	Path         string // health.ready; "" for the file as a whole
	Message      string
}

func (p Problem) Error() string {
	s := fmt.Sprintf("%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Path != "" {
		s += p.Path + ": "
	}
	return s + p.Message
}

// Problems is everything that is wrong in a file, in the order of the file. It is a pando.ErrInvalid.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

func (Problems) Is(target error) bool { return target == pando.ErrInvalid }

// Load reads the services of a file, one per YAML document. A relative working_dir is relative to the file.
func Load(path string) ([]pando.Spec, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("read the spec %s: %w", path, err)
	}
	return Parse(path, data, dir)
}

func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the spec: %w", err)
	}
	if st.IsDir() {
		return nil, fmt.Errorf("%w: %s is a folder: name the file in it, such as %s", pando.ErrInvalid, path, filepath.Join(path, "pando.yaml"))
	}
	if st.Size() > fileBytesMax {
		return nil, Problems{{File: path, Line: 1, Column: 1, Message: tooLarge}}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the spec: %w", err)
	}
	return data, nil
}

const tooLarge = "the file is larger than 1 MiB: a spec is a page of text"

// Parse reads the services in data. name stands in errors; dir is what a relative working_dir is relative to.
// When anything at all is wrong it returns no spec and Problems.
func Parse(name string, data []byte, dir string) ([]pando.Spec, error) {
	r := &reader{file: name, dir: dir}
	if !r.acceptable(data) {
		return nil, r.problems
	}
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.syntax(err, data)
		return nil, r.problems
	}
	var specs []pando.Spec
	seen := map[pando.ServiceKey]bool{}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType {
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
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Column - b.Column
		})
		return nil, r.problems[:min(len(r.problems), problemsMax)]
	}
	return specs, nil
}

// acceptable refuses what should not even reach the YAML parser.
func (r *reader) acceptable(data []byte) bool {
	if len(data) > fileBytesMax {
		r.add(1, 1, "", tooLarge)
		return false
	}
	if i := bytes.IndexByte(data, 0); i >= 0 {
		r.add(1+bytes.Count(data[:i], []byte("\n")), i-bytes.LastIndexByte(data[:i], '\n'), "", "a NUL byte: this is not a text file")
		return false
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
	r.add(line, column, "", "%s", text)
}
