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
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"pando.run/pando/spec"
)

// places finds the lines and columns of words in a file. compose-go drops them.
type places struct {
	file    string
	body    ast.Node
	anchors map[string]ast.Node
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
	return whole
}

// keys returns the keys of the map at a path, without merged ones.
func (p *places) keys(path ...string) (out []string) {
	at, whole := p.find(path)
	if !whole {
		return nil
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
	at, whole := p.find(path)
	if !whole {
		return ""
	}
	text, _ := p.scalar(at.Value)
	return text
}

// problem returns a problem at a path of the file, or at the deepest word on the way to it.
func (p *places) problem(path []string, text string) spec.Problem {
	out := spec.Problem{File: p.file, Line: 1, Column: 1, Path: strings.Join(path, "."), Message: text}
	if at, _ := p.find(path); at != nil {
		token := at.Key.GetToken()
		out.Line, out.Column = token.Position.Line, token.Position.Column
	}
	return out
}

// layers returns the files of a project in the order in which a word counts: a later merged file
// comes first, and included files come last.
func (f *files) layers() []*file {
	out := slices.Clone(f.merged)
	slices.Reverse(out)
	return append(out, f.others...)
}

// has reports whether a file of the project has a word at a path.
func (f *files) has(path ...string) bool {
	_, ok := f.whole(path, 0)
	return ok
}

// text returns the text at a path of the merged files, or "".
func (f *files) text(path ...string) string {
	for _, one := range slices.Backward(f.merged) {
		if one.has(path...) {
			return one.text(path...)
		}
	}
	return ""
}

// problem returns a problem at a path of the project: in the file that has the word, or else at the
// deepest word on the way to it.
func (f *files) problem(path []string, text string) spec.Problem {
	if p, ok := f.whole(path, 0); ok {
		p.Path, p.Message = strings.Join(path, "."), text
		return p
	}
	var best *file
	for _, one := range f.layers() {
		if best == nil || one.depth(path) > best.depth(path) {
			best = one
		}
	}
	if best == nil { // the first file could not be read
		return spec.Problem{File: f.main, Line: 1, Column: 1, Path: strings.Join(path, "."),
			Message: text}
	}
	return best.problem(path, text)
}

// whole returns the place of a word: in a file that has it, or in the service that the word's
// service extends.
func (f *files) whole(path []string, depth int) (spec.Problem, bool) {
	for _, one := range f.layers() {
		if one.has(path...) {
			return one.problem(path, ""), true
		}
	}
	if depth > 10 || len(path) < 3 || path[0] != "services" {
		return spec.Problem{}, false
	}
	for _, one := range f.layers() {
		base := one.text("services", path[1], "extends", "service")
		if base == "" {
			base = one.text("services", path[1], "extends")
		}
		if base != "" && base != path[1] {
			at := append([]string{"services", base}, path[2:]...)
			return f.whole(at, depth+1)
		}
	}
	return spec.Problem{}, false
}

// depth returns the number of words of a path that the file has.
func (p *places) depth(path []string) int {
	for n := len(path); n > 0; n-- {
		if p.has(path[:n]...) {
			return n
		}
	}
	return 0
}

// wordsPath finds the path of a word in a message of compose-go.
var wordsPath = regexp.MustCompile(
	`\b(services|volumes|secrets|configs|networks)(\.[A-Za-z0-9_-]+)+`)

// namedService finds the service in a message of compose-go.
var namedService = regexp.MustCompile(`service "([^"]+)"`)

// badPort finds the port in a message of compose-go.
var badPort = regexp.MustCompile(`^[Ii]nvalid (?:hostPort|containerPort|proto|ip|IP)[^:]*: (\S+)$`)

// portWith returns the place of the first port with a text.
func portWith(f *files, text string) (spec.Problem, bool) {
	for _, one := range f.layers() {
		for _, service := range one.keys("services") {
			at := []string{"services", service, "ports"}
			v, whole := one.find(at)
			if !whole {
				continue
			}
			for _, n := range one.elements(v.Value) {
				if s, _ := one.scalar(n); strings.Contains(s, text) {
					p := one.problem(at, "")
					p.Line, p.Column = n.GetToken().Position.Line, n.GetToken().Position.Column
					return p, true
				}
			}
		}
	}
	return spec.Problem{}, false
}

// foreign returns an error of compose-go with its place in the project.
func (c *converter) foreign(err error) error {
	var known spec.Problems
	if errors.As(err, &known) {
		return known
	}
	text := err.Error()
	for _, one := range c.layers() {
		text = strings.TrimPrefix(text, "validating "+one.path+": ")
	}
	text = cmp.Or(strings.TrimSpace(text), "the file cannot be read")
	if empty := c.emptied(); len(empty) > 0 && !strings.Contains(text, "cycle") {
		return c.sorted(empty)
	}
	if m := badPort.FindStringSubmatch(text); m != nil {
		if p, ok := portWith(c.files, m[1]); ok {
			p.Message = text
			return spec.Problems{p}
		}
	}
	var path []string
	if found := wordsPath.FindString(text); found != "" {
		path = strings.Split(found, ".")
	} else if m := namedService.FindStringSubmatch(text); m != nil {
		path = []string{"services", m[1]}
	}
	return spec.Problems{c.problem(path, text)}
}

// emptied returns the ports, volumes and images of the services that have a variable without a
// value. compose-go refuses what is left of them, without the name of the variable.
func (c *converter) emptied() (out spec.Problems) {
	for _, one := range c.layers() {
		for _, service := range one.keys("services") {
			for _, word := range []string{"image", "ports", "volumes"} {
				at := []string{"services", service, word}
				v, whole := one.find(at)
				if !whole {
					continue
				}
				for _, n := range one.elements(v.Value) {
					text, _ := one.scalar(n)
					if name := c.unsetIn(text); name != "" {
						p := one.problem(at, text+": variable "+name+" has no value: set it, or write it into .env")
						p.Line, p.Column = n.GetToken().Position.Line, n.GetToken().Position.Column
						out = append(out, p)
					}
				}
			}
		}
	}
	return out
}

// unsetIn returns the first variable of a text that is neither set nor has a default, or "".
func (c *converter) unsetIn(text string) string {
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		if name := cmp.Or(m[2], m[3]); c.environment[name] == "" {
			return name
		}
	}
	return ""
}

func sortedKeys[M ~map[K]V, K cmp.Ordered, V any](m M) []K {
	return slices.Sorted(maps.Keys(m))
}

// commentsOf returns the columns at which the comments of a file begin, by line.
func commentsOf(data []byte) map[int]int {
	out := map[int]int{}
	for _, t := range lexer.Tokenize(string(data)) {
		if t.Type == token.CommentType {
			out[t.Position.Line] = t.Position.Column - 1
		}
	}
	return out
}

// variable is a reference to a variable without a default, as in $NAME or ${NAME}.
var variable = regexp.MustCompile(
	`(^|[^$])\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))`)

// unset warns of variables that become empty, because neither the environment nor .env has them.
func (c *converter) unset() {
	for _, one := range c.layers() {
		line, comments := 0, commentsOf(one.data)
		for text := range strings.Lines(string(one.data)) {
			line++
			if at, ok := comments[line]; ok {
				text = text[:min(at, len(text))]
			}
			for _, m := range variable.FindAllStringSubmatchIndex(text, -1) {
				from, to := m[4], m[5]
				if from < 0 {
					from, to = m[6], m[7]
				}
				_, ok := c.environment[text[from:to]]
				if _, own := c.included[text[from:to]]; !ok && !own {
					add(&c.warnings, spec.Problem{File: one.file, Line: line, Column: m[3] + 1,
						Message: "variable " + text[from:to] +
							" is not set and becomes empty: set it, or write it into .env"})
				}
			}
		}
	}
}
