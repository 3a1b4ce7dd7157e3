package spec

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
)

const secretPattern = `^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`

var secretName = regexp.MustCompile(secretPattern)

// secretWords is the value of `secrets`.
type secretWords struct {
	files  map[string]string
	stored []pando.StoredSecret
}

const secretsWant = "a list of names such as [db-password], or a map such as " +
	"{db-password: {on_change: SIGHUP}, token: /etc/shop/token}"

var secretsKind = kind{
	schema: map[string]any{"anyOf": []any{
		map[string]any{"type": "array", "minItems": 1,
			"items": map[string]any{"type": "string", "pattern": secretPattern}},
		map[string]any{"type": "object", "propertyNames": map[string]any{"pattern": secretPattern},
			"additionalProperties": map[string]any{"anyOf": []any{
				map[string]any{"type": "string", "pattern": `^[^\x00]+$`},
				map[string]any{"type": "object", "additionalProperties": false,
					"properties": map[string]any{"on_change": signalKind.schema}},
			}}},
	}},
	read: func(r *reader, n ast.Node, where string, take func(any)) {
		out := secretWords{}
		if list, ok := n.(*ast.SequenceNode); ok {
			for _, item := range list.Values {
				name, ok := text(item)
				if !ok {
					r.wrong(item, where, secretsWant)
					continue
				}
				out.stored = append(out.stored, pando.StoredSecret{Name: name})
			}
			take(out)
			return
		}
		pairs, _ := r.pairs(n, where, secretsWant)
		for _, p := range pairs {
			at := join(where, p.key)
			if file, ok := text(p.value); ok && file != "" {
				if out.files == nil {
					out.files = map[string]string{}
				}
				out.files[p.key] = file
				continue
			}
			one := pando.StoredSecret{Name: p.key}
			words, _ := r.pairs(p.value, at, "{on_change: SIGNAL}, {} or a file of the host")
			for _, w := range words {
				if w.key != "on_change" {
					r.at(w.where, join(at, w.key), "want on_change alone")
					continue
				}
				signalKind.read(r, w.value, join(at, w.key), func(v any) { one.OnChange = v.(string) })
			}
			out.stored = append(out.stored, one)
		}
		slices.SortFunc(out.stored, func(a, b pando.StoredSecret) int {
			return strings.Compare(a.Name, b.Name)
		})
		take(out)
	},
}

// flow is a map with values in YAML.
type flow map[string]string

// secretTexts returns the secrets of a spec as its file has them.
func secretTexts(s pando.Spec) any {
	plain := len(s.Secrets) == 0 && !slices.ContainsFunc(s.StoredSecrets,
		func(one pando.StoredSecret) bool { return one.OnChange != "" })
	if plain {
		var names []string
		for _, one := range s.StoredSecrets {
			names = append(names, one.Name)
		}
		return names
	}
	out := flow{}
	for name, file := range s.Secrets {
		out[name] = scalar(file)
	}
	for _, one := range s.StoredSecrets {
		out[one.Name] = "{}"
		if one.OnChange != "" {
			out[one.Name] = "{on_change: " + one.OnChange + "}"
		}
	}
	return out
}

// secrets checks the secrets of a spec.
func (c *checks) secrets(s pando.Spec) {
	c.that(len(s.Secrets)+len(s.StoredSecrets) <= pando.SecretsMax, "secrets: more than %d",
		pando.SecretsMax)
	for name, file := range s.Secrets {
		c.that(secretName.MatchString(name), "secrets: %q is no name of a file", name)
		c.that(path.IsAbs(file), "secrets.%s: %q is no absolute path", name, file)
		c.text("secrets."+name, file)
	}
	seen := map[string]bool{}
	for _, one := range s.StoredSecrets {
		c.that(secretName.MatchString(one.Name), "secrets: %q: want a name of letters, digits, '_', "+
			"'-' and '.'", one.Name)
		c.that(!seen[one.Name] && s.Secrets[one.Name] == "", "secrets: %s is there twice", one.Name)
		c.signal("secrets."+one.Name+": on_change", one.OnChange)
		seen[one.Name] = true
	}
}
