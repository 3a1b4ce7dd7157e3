package spec

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"pando.run/pando"
	"pando.run/pando/spec/nearest"
)

// reader walks one file and collects its errors.
type reader struct {
	file, dir string
	problems  Problems
	over      map[*token.Token]string // tokens of an overlay, with its file
}

func (r *reader) add(line, column int, path, format string, args ...any) {
	r.problems = append(r.problems, Problem{File: r.file, Line: line, Column: column, Path: path,
		Message: fmt.Sprintf(format, args...)})
}

func (r *reader) at(n ast.Node, path, format string, args ...any) {
	line, column, file := 1, 1, r.file
	if n != nil {
		n = first(n)
		if t := n.GetToken(); t != nil && t.Position != nil {
			line, column = t.Position.Line, t.Position.Column
			file = cmp.Or(r.over[t], file)
		}
	}
	r.add(line, column, path, format, args...)
	r.problems[len(r.problems)-1].File = file
}

// first returns the first node of a mapping: the token of a mapping is a colon inside it.
func first(n ast.Node) ast.Node {
	switch m := n.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return m.Values[0].Key
		}
	case *ast.MappingValueNode:
		return m.Key
	}
	return n
}

// pair is one key of a mapping with its value.
type pair struct {
	key   string
	where ast.Node
	value ast.Node
}

// pairs reads a mapping. want describes the expected value, for the error.
func (r *reader) pairs(n ast.Node, path, want string) ([]pair, bool) {
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		r.wrong(n, path, want)
		return nil, false
	}
	out := make([]pair, 0, len(values))
	seen := map[string]bool{}
	for _, v := range values {
		key, ok := text(v.Key)
		switch {
		case !ok || v.Key.Type() == ast.MergeKeyType:
			r.at(v.Key, path,
				"anchors, aliases, tags and merge keys have no place in a spec: write the value out")
		case seen[key]:
			r.at(v.Key, join(path, key), "this key is here twice")
		default:
			out = append(out, pair{key: key, where: v.Key, value: v.Value})
		}
		seen[key] = true
	}
	return out, true
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// text returns a scalar as written.
func text(n ast.Node) (string, bool) {
	switch s := n.(type) {
	case *ast.StringNode:
		return s.Value, true
	case *ast.LiteralNode:
		return s.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return s.GetToken().Value, true
	}
	return "", false
}

// wrong reports a value of the wrong type.
func (r *reader) wrong(n ast.Node, path, want string) {
	switch n.Type() {
	case ast.AnchorType, ast.AliasType, ast.TagType, ast.MergeKeyType:
		r.at(n, path,
			"anchors, aliases, tags and merge keys have no place in a spec: write the value out")
		return
	}
	value, _ := text(n)
	r.at(n, path, "want %s; this is %s%s", want, kindName(n), rewritten(path, value))
}

func kindName(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a map"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		if t := n.GetToken(); t.Type == token.NullType && t.Value != "~" {
			return fmt.Sprintf("%s of YAML, which is empty: write \"%[1]s\" for the word", t.Value)
		}
		return "empty"
	}
	if s, ok := text(n); ok {
		return fmt.Sprintf("%q", s)
	}
	return "a " + strings.ToLower(n.Type().String())
}

// object reads a mapping by a table of fields. It returns the place of each key.
func (r *reader) object(n ast.Node, path string, table []field, s *pando.Spec) map[string]ast.Node {
	pairs, ok := r.pairs(n, path, "a map with "+names(table))
	where := map[string]ast.Node{}
	for _, p := range pairs {
		f, known := find(table, p.key)
		if !known {
			r.at(p.where, join(path, p.key),
				"unknown key%s", cmp.Or(insteadOf(join(path, p.key)), suggest(p.key, table)))
			continue
		}
		where[p.key] = p.where
		if f.fields != nil {
			for k, v := range r.object(p.value, join(path, p.key), f.fields, s) {
				where[p.key+"."+k] = v
			}
			continue
		}
		f.kind.read(r, p.value, join(path, p.key), func(v any) { f.set(s, v) })
	}
	if ok {
		for _, f := range table {
			if f.required && where[f.name] == nil {
				r.at(n, join(path, f.name), "is missing: %s", f.doc)
			}
		}
	}
	return where
}

// service reads one document.
func (r *reader) service(n ast.Node) (s pando.Spec, name ast.Node) {
	before := len(r.problems)
	where := r.object(n, "", fields, &s)
	for _, c := range joinHostPorts(&s) {
		r.at(where[c.path], c.path, "%s", c.text)
	}
	r.check(s, where)
	if s.Rollout.Surge == noSurge {
		s.Rollout.Surge, s.Rollout.Order = 0, pando.StopFirst
	}
	r.place(n, &s, where)
	r.absolute(&s)
	if len(r.problems) == before {
		r.possible(s, where)
	}
	return s, where["name"]
}

// place makes the paths of a spec absolute. Without an image there must be a command.
func (r *reader) place(n ast.Node, s *pando.Spec, where map[string]ast.Node) {
	if s.Image.Reference == "" {
		if where["command"] == nil && len(s.Endpoints) == 0 && !s.IsVM() {
			r.at(n, "command", "is missing: %s", commandDoc)
		}
		if f := s.Bundle.Folder; f != "" {
			if !filepath.IsAbs(f) {
				f = filepath.Join(r.dir, f)
			}
			s.Bundle.Folder = filepath.Clean(f)
			s.WorkingDir = cmp.Or(s.WorkingDir, s.Bundle.Folder)
		}
		if !filepath.IsAbs(s.WorkingDir) {
			s.WorkingDir = filepath.Join(r.dir, s.WorkingDir)
		}
		return
	}
	s.Image.Reference = Beside(r.dir, s.Image.Reference)
	if s.WorkingDir != "" && !filepath.IsAbs(s.WorkingDir) {
		r.at(where["working_dir"], "working_dir", "is a folder of the image: write its absolute path")
	}
}

// zeroBy is why a service that scales by traffic has an instance.
const zeroBy = "0 beside by: without an instance there is no traffic to count: add idle: 60s, " +
	"write min: 1, or drop by"

// check finds conflicts between fields that are valid on their own.
func (r *reader) check(s pando.Spec, where map[string]ast.Node) {
	if s.Scale.Max > 0 && s.Scale.Max < max(1, s.Scale.Min) {
		r.at(where["scale.max"], "scale.max", "max %d is less than min %d", s.Scale.Max,
			max(1, s.Scale.Min))
	}
	if s.Scale.Zero && !s.Scale.FromZero() && s.Scale.By != pando.ByNothing {
		r.at(where["scale.min"], "scale.min", zeroBy)
	}
	if s.Rollout.Surge == noSurge && s.Rollout.Order == pando.StartFirst {
		r.at(where["rollout.surge"], "rollout.surge",
			"0 means order: stop-first, and order is start-first: drop one of them")
	}
	if s.Scale.Warm > 0 && s.WithDefaults().Single() {
		r.at(where["scale.warm"], "scale.warm",
			"a reserve runs beside the instance, and max: 1 allows one: drop warm, or raise max")
	}
	switch {
	case s.Scale.By == pando.ByNothing && s.Scale.Target != 0 && where["scale.by"] == nil:
		r.at(where["scale.target"], "scale.target", "has no effect without by, such as by: connections/s")
	case s.Scale.By.Counted() && len(s.Ports) == 0 && s.Scale.Target != 0:
		r.at(where["scale.by"], "scale.by",
			"counts traffic of a published port, and there is none: add ports")
	}
	if err := s.Balance.Check(); err != nil {
		at := cmp.Or(where["balance.every"], where["balance.weights"])
		r.at(at, "balance", "%s", strings.TrimPrefix(err.Error(), pando.ErrInvalid.Error()+": "))
	}
	for _, c := range slices.Concat(scaleConflicts(s.Scale), placeConflicts(s), volumeConflicts(s),
		connectConflicts(s),
		replicateConflicts(s), healthConflicts(s.Health), runtimeConflicts(s),
		canaryConflicts(s), externalConflicts(s), grantConflicts(s), vmConflicts(s), jobConflicts(s),
		statefulConflicts(s), formConflicts(s), aloneConflicts(s)) {
		r.at(placeOf(where, c.path), c.path, "%s", c.text)
	}
	if where["ports"] == nil && s.Kind != pando.KindJob {
		for _, p := range s.Health.Probes() {
			if p.Dials() != "" && p.Port == 0 {
				r.at(where[p.Key], p.Key,
					"names no port and the service publishes none: write tcp 7000 or http GET :7000/ok")
			}
		}
	}
}

// placeOf returns the place of a key. The variables of env_file are those of environment.
func placeOf(where map[string]ast.Node, path string) ast.Node {
	if path == "environment" && where[path] == nil {
		return where["env_file"]
	}
	return where[path]
}

// suggest finds the key that a mistyped key probably meant.
func suggest(key string, table []field) string {
	known := make([]string, len(table))
	for i, f := range table {
		known[i] = f.name
	}
	if best := nearest.Word(key, known); best != "" {
		return fmt.Sprintf(": did you mean `%s`?", best)
	}
	return ": known are " + names(table)
}
