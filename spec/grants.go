package spec

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
)

const grantWant = "`device: NAME`, `path: PATH:ro`, `path: PATH:rw` or `netns: host`"

// grantsKind is a list of grants, each a map of one key or a text KIND=NAME.
var grantsKind = kind{
	schema: map[string]any{"type": "array", "minItems": 1, "maxItems": pando.GrantsMax,
		"items": map[string]any{"oneOf": []any{
			map[string]any{"type": "string", "pattern": "^(device|path|netns)=."},
			map[string]any{"type": "object", "additionalProperties": false, "minProperties": 1,
				"maxProperties": 1, "properties": map[string]any{
					string(pando.GrantDevice): map[string]any{"type": "string", "minLength": 1},
					string(pando.GrantPath):   map[string]any{"type": "string", "minLength": 1},
					string(pando.GrantNetns):  map[string]any{"type": "string", "enum": []any{"host"}},
				}},
		}}},
	read: func(r *reader, n ast.Node, where string, take func(any)) {
		list, ok := n.(*ast.SequenceNode)
		if !ok || len(list.Values) == 0 {
			r.wrong(n, where, "a list such as [device: kvm]")
			return
		}
		var out []pando.Grant
		for i, item := range list.Values {
			at := fmt.Sprintf("%s[%d]", where, i)
			s, ok := r.grant(item, at)
			if !ok {
				continue
			}
			g, err := pando.ParseGrant(s)
			if err != nil {
				r.at(item, at, "%s", plainly(err))
				continue
			}
			out = append(out, g)
		}
		take(out)
	},
}

// grant returns one item of a list of grants as KIND=NAME.
func (r *reader) grant(n ast.Node, at string) (string, bool) {
	if s, ok := text(n); ok {
		return s, true
	}
	pairs, ok := r.pairs(n, at, grantWant)
	if !ok {
		return "", false
	}
	if len(pairs) != 1 {
		r.at(n, at, "want one grant in each item of the list")
		return "", false
	}
	name, ok := text(pairs[0].value)
	if !ok {
		r.wrong(pairs[0].value, join(at, pairs[0].key), grantWant)
		return "", false
	}
	return pairs[0].key + "=" + name, true
}

// plainly returns the text of an invalid value without its class.
func plainly(err error) string {
	return strings.TrimPrefix(err.Error(), pando.ErrInvalid.Error()+": ")
}

// grantWords returns grants in the form of a file.
func grantWords(all []pando.Grant) []string {
	var out []string
	for _, g := range all {
		out = append(out, string(g))
	}
	return out
}

// grantConflicts returns the keys of a spec that contradict its grants.
func grantConflicts(s pando.Spec) (out []conflict) {
	if len(s.Grants) == 0 {
		return nil
	}
	add := func(is bool, path, text string) {
		if is {
			out = append(out, conflict{path, text})
		}
	}
	if err := s.CheckGrants(); err != nil {
		add(true, "grants", plainly(err))
	}
	add(len(s.Endpoints) > 0, "grants", "has no effect beside endpoints, which Pando does not start: "+
		"drop one of them")
	if !s.HostNet() {
		return out
	}
	add(len(s.Ports) > 0, "ports", "with netns: host the program listens at the address of its host, "+
		"which nothing balances: drop ports, or the grant")
	for _, p := range s.Health.Probes() {
		add(p.Dials() != "" && p.Port == 0, p.Key, "name its port, as tcp 7000")
	}
	return out
}
