package compose

import (
	"cmp"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// places finds the lines and columns of words in a file. compose-go drops them.
type places struct {
	file    string
	body    ast.Node
	anchors map[string]ast.Node
	over    *places // of an overlay, or nil
}

// placesOf reads the places of a file. It expands no alias.
func placesOf(file string, data []byte) (*places, error) {
	p := &places{file: file, anchors: map[string]ast.Node{}}
	f, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		problem := spec.Problem{File: file, Line: 1, Column: 1, Message: err.Error()}
		var y yaml.Error
		if errors.As(err, &y) && y.GetToken() != nil {
			at := y.GetToken().Position
			problem.Line, problem.Column, problem.Message = at.Line, at.Column, y.GetMessage()
		}
		return nil, spec.Problems{problem}
	}
	for _, doc := range f.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType {
			continue
		}
		if p.body != nil {
			at := doc.Body.GetToken().Position
			return nil, spec.Problems{{File: file, Line: at.Line, Column: at.Column,
				Message: "a second document: a Compose file has one"}}
		}
		p.body = doc.Body
		ast.Walk(p, doc.Body)
	}
	return p, nil
}

// Visit implements ast.Visitor: it notes the anchors.
func (p *places) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok {
		p.anchors[a.Name.String()] = a.Value
	}
	return p
}

// resolved returns the node behind anchors and aliases.
func (p *places) resolved(n ast.Node) ast.Node {
	for range 10 {
		switch m := n.(type) {
		case *ast.AnchorNode:
			n = m.Value
		case *ast.AliasNode:
			n = p.anchors[m.Value.String()]
		case *ast.TagNode:
			n = m.Value
		default:
			return n
		}
	}
	return nil
}

// entries returns the entries of a map, without those that it merges.
func (p *places) entries(n ast.Node) []*ast.MappingValueNode {
	switch m := p.resolved(n).(type) {
	case *ast.MappingNode:
		return m.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}
	}
	return nil
}

// entry returns one entry of a map, also of the maps that it merges.
func (p *places) entry(n ast.Node, key string, depth int) *ast.MappingValueNode {
	if depth > 10 {
		return nil
	}
	var merged []ast.Node
	for _, v := range p.entries(n) {
		if v.Key.Type() == ast.MergeKeyType {
			if list, ok := p.resolved(v.Value).(*ast.SequenceNode); ok {
				merged = append(merged, list.Values...)
			} else {
				merged = append(merged, v.Value)
			}
			continue
		}
		if keyText(v) == key {
			return v
		}
	}
	for _, m := range merged {
		if v := p.entry(m, key, depth+1); v != nil {
			return v
		}
	}
	return nil
}

func keyText(v *ast.MappingValueNode) string {
	if s, ok := v.Key.(*ast.StringNode); ok {
		return s.Value
	}
	return v.Key.String()
}

// find returns the entry at a path, or the deepest entry on the way.
func (p *places) find(path []string) (at *ast.MappingValueNode, whole bool) {
	n := p.body
	for _, key := range path {
		v := p.entry(n, key, 0)
		if v == nil {
			return at, false
		}
		at, n = v, v.Value
	}
	return at, at != nil
}

// has reports whether the file has a word at a path.
func (p *places) has(path ...string) bool {
	_, whole := p.find(path)
	return whole || p.over != nil && p.over.has(path...)
}

// keys returns the keys of the map at a path, without merged ones.
func (p *places) keys(path ...string) []string {
	var out []string
	if p.over != nil {
		out = p.over.keys(path...)
	}
	at, whole := p.find(path)
	if !whole {
		return out
	}
	for _, v := range p.entries(at.Value) {
		if v.Key.Type() != ast.MergeKeyType && !slices.Contains(out, keyText(v)) {
			out = append(out, keyText(v))
		}
	}
	return out
}

// text returns the text at a path, or "".
func (p *places) text(path ...string) string {
	if p.over != nil && p.over.has(path...) {
		return p.over.text(path...)
	}
	at, whole := p.find(path)
	if !whole {
		return ""
	}
	if s, ok := p.resolved(at.Value).(*ast.StringNode); ok {
		return s.Value
	}
	return ""
}

// problem returns a problem at a path of the file, or at the deepest word on the way to it.
func (p *places) problem(path []string, text string) spec.Problem {
	if p.over != nil && p.over.has(path...) {
		return p.over.problem(path, text)
	}
	out := spec.Problem{File: p.file, Line: 1, Column: 1, Path: strings.Join(path, "."), Message: text}
	if at, _ := p.find(path); at != nil {
		token := at.Key.GetToken()
		out.Line, out.Column = token.Position.Line, token.Position.Column
	}
	return out
}

// wordsPath finds the path of a word in a message of compose-go.
var wordsPath = regexp.MustCompile(
	`\b(services|volumes|secrets|configs|networks)(\.[A-Za-z0-9_-]+)+`)

// namedService finds the service in a message of compose-go.
var namedService = regexp.MustCompile(`service "([^"]+)"`)

// foreign returns an error of compose-go with its place in the file.
func (p *places) foreign(err error) error {
	var known spec.Problems
	if errors.As(err, &known) {
		return known
	}
	text := strings.TrimPrefix(err.Error(), "validating "+p.file+": ")
	text = cmp.Or(strings.TrimSpace(text), "the file cannot be read")
	var path []string
	if found := wordsPath.FindString(text); found != "" {
		path = strings.Split(found, ".")
	} else if m := namedService.FindStringSubmatch(text); m != nil {
		path = []string{"services", m[1]}
	}
	return spec.Problems{p.problem(path, text)}
}

func sortedKeys[M ~map[K]V, K cmp.Ordered, V any](m M) []K {
	return slices.Sorted(maps.Keys(m))
}

// variable is a reference to a variable without a default, as in $NAME or ${NAME}.
var variable = regexp.MustCompile(
	`(^|[^$])\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))`)

// unset warns of variables that become empty, because neither the environment nor .env has them.
func (c *converter) unset(data []byte, known map[string]string) {
	line := 0
	for text := range strings.Lines(string(data)) {
		line++
		if strings.HasPrefix(strings.TrimSpace(text), "#") {
			continue
		}
		for _, m := range variable.FindAllStringSubmatchIndex(text, -1) {
			from, to := m[4], m[5]
			if from < 0 {
				from, to = m[6], m[7]
			}
			if _, ok := known[text[from:to]]; !ok {
				add(&c.warnings, spec.Problem{File: c.file, Line: line, Column: m[3] + 1, Message: "variable " +
					text[from:to] + " is not set and becomes empty: set it, or write it into .env"})
			}
		}
	}
}

// serviceName returns the name of a service as a name of Pando.
func (c *converter) serviceName(name string) pando.ServiceName {
	if err := pando.CheckLabel("service", name); err != nil {
		c.deny([]string{"services", name}, "%v; rename it, and wherever a program has its name", err)
	}
	return pando.ServiceName(name)
}
