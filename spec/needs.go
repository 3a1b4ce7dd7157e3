package spec

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
)

var conditionKind = enumKind(string(pando.NeedStarted), string(pando.NeedHealthy),
	string(pando.NeedCompleted))

var needNameKind = labelKind("service")

// needsKind is a list of services, or a map of services and conditions.
var needsKind = kind{
	schema: map[string]any{"oneOf": []any{
		map[string]any{"type": "array", "minItems": 1, "maxItems": pando.NeedsMax,
			"items": needNameKind.schema},
		map[string]any{"type": "object", "additionalProperties": conditionKind.schema,
			"propertyNames": map[string]any{"pattern": needNameKind.schema["pattern"]},
			"maxProperties": pando.NeedsMax},
	}},
	read: func(r *reader, n ast.Node, where string, take func(any)) {
		out := map[pando.ServiceName]pando.Need{}
		if list, ok := n.(*ast.SequenceNode); ok {
			for i, item := range list.Values {
				at := fmt.Sprintf("%s[%d]", where, i)
				needNameKind.read(r, item, at, func(v any) {
					name := pando.ServiceName(v.(string))
					if out[name] != "" {
						r.at(item, at, "%s is here twice", name)
					}
					out[name] = pando.NeedStarted
				})
			}
			take(out)
			return
		}
		pairs, _ := r.pairs(n, where, "services and conditions, such as {db: healthy}")
		for _, p := range pairs {
			at := join(where, p.key)
			needNameKind.read(r, p.where, at, func(name any) {
				conditionKind.read(r, p.value, at, func(v any) {
					out[pando.ServiceName(name.(string))] = pando.Need(v.(string))
				})
			})
		}
		take(out)
	},
}

func needTexts(m map[pando.ServiceName]pando.Need) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[string(k)] = string(v)
	}
	return out
}

// needs checks the services that a service waits for.
func (c *checks) needs(s pando.Spec) {
	c.that(len(s.Needs) <= pando.NeedsMax, "needs: more than %d services", pando.NeedsMax)
	for name, condition := range s.Needs {
		c.also(pando.CheckLabel("needs: service", string(name)))
		c.that(name != s.Name, "needs.%s: a service cannot wait for itself: drop it", name)
		c.that(slices.Contains(pando.NeedWords, condition),
			"needs.%s: %q: want started, healthy or completed", name, condition)
	}
}
