package spec

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"pando.run/pando"
)

// overlay is a file that changes the services of another one for an environment. Maps are merged
// key by key. Any other value takes the place of the former one, and an empty value removes it.
type overlay struct {
	name string
	data []byte
}

// OverlayOf returns the path of the overlay of a file for an environment: app.staging.yaml beside
// app.yaml.
func OverlayOf(path, env string) string {
	ext := filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + "." + env + ext
}

// ReadOverlay reads the overlay of a file. An environment without one is an error: a word that is
// mistyped must not deploy the file as it is.
func ReadOverlay(ctx context.Context, path, env string) (name string, data []byte, err error) {
	if err := pando.CheckLabel("environment", env); err != nil {
		return "", nil, err
	}
	name = OverlayOf(path, env)
	data, err = Read(ctx, name)
	if errors.Is(err, pando.ErrNotFound) {
		err = fmt.Errorf("%w: there is no %s, which has the changes of %s for --env %s",
			pando.ErrInvalid, name, path, env)
	}
	return name, data, err
}

// ParseWith reads the services of a file as Parse does, after the changes of an overlay.
func ParseWith(
	name string, data []byte, overlayName string, overlayData []byte, dir string,
) ([]pando.Spec, error) {
	return parse(name, data, dir, &overlay{overlayName, overlayData})
}

// lay merges the overlay into the documents of a file. It returns false after a problem.
func (o *overlay) lay(r *reader, file *ast.File) bool {
	mine := &reader{file: o.name}
	over := mine.documents(o.data)
	if over == nil {
		r.problems = append(r.problems, mine.problems...)
		return false
	}
	r.over = map[*token.Token]string{}
	for _, doc := range over.Docs {
		if isEmpty(doc) {
			continue
		}
		ast.Walk(marking{r.over, o.name}, doc.Body)
		r.twice(doc.Body, "")
		if at := o.target(r, file, doc.Body); at != nil {
			at.Body = merged(at.Body, doc.Body)
		}
	}
	return len(r.problems) == 0
}

// twice reports the keys of an overlay that it has twice. The merge would hide them.
func (r *reader) twice(n ast.Node, path string) {
	seen := map[string]bool{}
	for _, v := range entries(n) {
		key, _ := text(v.Key)
		if seen[key] {
			r.at(v.Key, join(path, key), "this key is here twice")
		}
		seen[key] = true
		r.twice(v.Value, join(path, key))
	}
}

// marking notes the tokens of an overlay.
type marking struct {
	over map[*token.Token]string
	name string
}

// Visit implements ast.Visitor.
func (m marking) Visit(n ast.Node) ast.Visitor {
	if t := n.GetToken(); t != nil {
		m.over[t] = m.name
	}
	return m
}

// target returns the document of a file that a document of an overlay changes: the one with its
// name, or the only one.
func (o *overlay) target(r *reader, file *ast.File, over ast.Node) *ast.DocumentNode {
	if entries(over) == nil {
		r.wrong(over, "", "a map with the keys to change")
		return nil
	}
	var all []*ast.DocumentNode
	var known []string
	name := nameIn(over)
	for _, doc := range file.Docs {
		if isEmpty(doc) {
			continue
		}
		if is := nameIn(doc.Body); name != "" && is == name {
			return doc
		} else if is != "" {
			known = append(known, is)
		}
		all = append(all, doc)
	}
	switch {
	case name != "":
		r.at(over, "name", "%s has no service %s to change: it has %s", r.file, name,
			strings.Join(known, ", "))
	case len(all) != 1:
		r.at(over, "name", "is missing: %s has %d services, and this changes one of them", r.file,
			len(all))
	default:
		return all[0]
	}
	return nil
}

func nameIn(n ast.Node) string {
	for _, v := range entries(n) {
		if key, _ := text(v.Key); key == "name" {
			name, _ := text(v.Value)
			return name
		}
	}
	return ""
}

// entries returns the entries of a map, or nil.
func entries(n ast.Node) []*ast.MappingValueNode {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}
	}
	return nil
}

// merged returns the value of a key after an overlay.
func merged(base, over ast.Node) ast.Node {
	was, is := entries(base), entries(over)
	if was == nil || is == nil {
		return over
	}
	out := slices.Clone(was)
	for _, v := range is {
		key, _ := text(v.Key)
		at := slices.IndexFunc(out, func(o *ast.MappingValueNode) bool {
			former, ok := text(o.Key)
			return ok && former == key
		})
		switch {
		case v.Value.Type() == ast.NullType && at >= 0:
			out = slices.Delete(out, at, at+1)
		case v.Value.Type() == ast.NullType:
		case at < 0:
			out = append(out, v)
		default:
			next := *v
			next.Value = merged(out[at].Value, v.Value)
			out[at] = &next
		}
	}
	return ast.Mapping(base.GetToken(), false, out...)
}
