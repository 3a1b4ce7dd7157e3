package spec

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
)

var commandKind = kind{
	schema: map[string]any{"oneOf": []any{
		map[string]any{"type": "string", "pattern": `[^ \t\n]`},
		map[string]any{"type": "array", "minItems": 1,
			"items": map[string]any{"type": []any{"string", "number", "boolean"}}},
	}},
	read: func(r *reader, n ast.Node, path string, take func(any)) {
		const want = `a command such as "./website -v" or ["./website", "-v"]`
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			s, ok := text(n)
			if !ok || n.Type() != ast.StringType && n.Type() != ast.LiteralType {
				r.wrong(n, path, want)
				return
			}
			argv, err := split(s)
			switch {
			case err != nil:
				r.at(n, path, "%v", err)
			case len(argv) == 0 || argv[0] == "":
				r.at(n, path, "is empty: want %s", want)
			default:
				take(argv)
			}
			return
		}
		var argv []string
		for i, item := range list.Values {
			s, ok := text(item)
			if !ok || i == 0 && s == "" {
				r.wrong(item, fmt.Sprintf("%s[%d]", path, i), "a text")
				continue
			}
			argv = append(argv, s)
		}
		if len(list.Values) == 0 {
			r.at(n, path, "is empty: want %s", want)
		}
		take(argv)
	},
}

// split divides a line into words as a shell does, with quotes and backslashes but without
// expansions.
func split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote byte
	begun := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n'):
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
			continue
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && quote != '\'':
			if i++; i == len(line) {
				return nil, errors.New("ends with a backslash")
			}
			if quote == '"' && line[i] != '"' && line[i] != '\\' {
				word.WriteByte('\\')
			}
			word.WriteByte(line[i])
		default:
			word.WriteByte(c)
		}
		begun = true
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote %c that does not end", quote)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// quote is the reverse of split.
func quote(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\") {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

const portWant = "a port such as 8080, 80:8080 or 53:53/udp"

var portForm = regexp.MustCompile(`^[0-9]{1,5}(:[0-9]{1,5})?(/(tcp|udp))?$`)

var protocolKind = enumKind("tcp", "udp")

var portNumberSchema = map[string]any{"type": []any{"integer", "string"}, "minimum": 1,
	"maximum": 65535, "pattern": "^[0-9]{1,5}$"}

var portNumberKind = kind{
	schema: portNumberSchema, read: func(r *reader, n ast.Node, path string, take func(any)) {
		s, ok := text(n)
		if !ok {
			r.wrong(n, path, "a port such as 8080")
			return
		}
		p, err := parsePort(s)
		if err != nil {
			r.at(n, path, "%v", err)
			return
		}
		take(p)
	}}

var portsKind = kind{
	schema: map[string]any{"type": "array", "items": map[string]any{"oneOf": []any{
		map[string]any{"type": "integer", "minimum": 1, "maximum": 65535},
		map[string]any{"type": "string", "pattern": portForm.String()},
		map[string]any{"type": "object", "additionalProperties": false,
			"required": []any{"target"}, "properties": map[string]any{
				"target": portNumberSchema, "published": portNumberSchema, "protocol": protocolKind.schema}},
	}}},
	read: func(r *reader, n ast.Node, path string, take func(any)) {
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			r.wrong(n, path, `a list of ports such as ["80:8080"]`)
			return
		}
		var ports []pando.Port
		seen := map[pando.Port]bool{}
		for i, item := range list.Values {
			at := fmt.Sprintf("%s[%d]", path, i)
			p, ok := r.port(item, at)
			if !ok {
				continue
			}
			if outside := (pando.Port{Published: p.Published, Protocol: p.Protocol}); seen[outside] {
				r.at(item, at, "%d/%s is published twice", p.Published, p.Protocol)
			} else {
				seen[outside] = true
			}
			ports = append(ports, p)
		}
		take(ports)
	},
}

func (r *reader) port(n ast.Node, path string) (pando.Port, bool) {
	p := pando.Port{Protocol: pando.TCP}
	s, ok := text(n)
	if !ok {
		ok := r.members(n, path, portWant, []field{
			{name: "target", doc: "the port of the program", required: true, kind: portNumberKind,
				set: func(_ *pando.Spec, v any) { p.Target = v.(uint16) }},
			{name: "published", kind: portNumberKind,
				set: func(_ *pando.Spec, v any) { p.Published = v.(uint16) }},
			{name: "protocol", kind: protocolKind,
				set: func(_ *pando.Spec, v any) { p.Protocol = pando.Protocol(v.(string)) }},
		})
		if p.Published == 0 {
			p.Published = p.Target
		}
		return p, ok
	}
	if !portForm.MatchString(s) {
		r.wrong(n, path, portWant)
		return p, false
	}
	ports, protocol, slash := strings.Cut(s, "/")
	if slash {
		p.Protocol = pando.Protocol(protocol)
	}
	published, target, both := strings.Cut(ports, ":")
	if !both {
		target = published
	}
	var err1, err2 error
	p.Published, err1 = parsePort(published)
	p.Target, err2 = parsePort(target)
	switch {
	case err1 != nil:
		r.at(n, path, "%v", err1)
	case err2 != nil:
		r.at(n, path, "%v", err2)
	default:
		return p, true
	}
	return p, false
}

func portTexts(ports []pando.Port) []string {
	out := make([]string, len(ports))
	for i, p := range ports {
		out[i] = fmt.Sprintf("%d:%d/%s", p.Published, p.Target, p.Protocol)
	}
	return out
}

const groupPattern = `^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,10})$`

var (
	isGroup    = regexp.MustCompile(groupPattern).MatchString
	groupsKind = listKind(`["video", "2000"]`,
		map[string]any{"type": []any{"string", "integer"}, "pattern": groupPattern},
		func(s string) (string, error) {
			if !isGroup(s) {
				return "", fmt.Errorf("%w: want a name or a number of a group", pando.ErrInvalid)
			}
			return s, nil
		})
)
