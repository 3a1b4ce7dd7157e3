package spec

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
)

// extraHostsMax bounds the names that a spec adds to /etc/hosts.
const extraHostsMax = 256

var hostLabels = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?$`)

// extraHosts checks the names that a spec adds to /etc/hosts.
func (c *checks) extraHosts(s pando.Spec) {
	c.that(len(s.ExtraHosts) <= extraHostsMax, "extra_hosts: more than %d", extraHostsMax)
	for name, address := range s.ExtraHosts {
		c.that(hostLabels.MatchString(name), "extra_hosts: %q is no name of a host", name)
		a, err := netip.ParseAddr(address)
		// A zone may be any text, such as a line break with another line of the file.
		c.that(err == nil && a.Zone() == "", "extra_hosts.%s: %q: want an address such as 192.0.2.9", name,
			address)
	}
	c.that(len(s.ExtraHosts) == 0 || len(s.Endpoints) == 0,
		"extra_hosts: has no effect beside endpoints, which Pando does not start: drop one of them")
}

// underneath adds variables to those that come before them.
func underneath(first, more map[string]string) map[string]string {
	out := maps.Clone(more)
	if out == nil {
		return first
	}
	maps.Copy(out, first)
	return out
}

// envFileKind reads one file of variables or a list of them.
var envFileKind = kind{
	schema: map[string]any{"oneOf": []any{
		map[string]any{"type": "string", "pattern": `^[^\x00]+$`},
		map[string]any{"type": "array", "minItems": 1,
			"items": map[string]any{"type": "string", "pattern": `^[^\x00]+$`}},
	}},
	read: func(r *reader, n ast.Node, where string, take func(any)) {
		list := []ast.Node{n}
		if all, ok := n.(*ast.SequenceNode); ok {
			list = all.Values
		}
		out := map[string]string{}
		for i, item := range list {
			at := where
			if len(list) > 1 {
				at = fmt.Sprintf("%s[%d]", where, i)
			}
			file, ok := text(item)
			if !ok || file == "" {
				r.wrong(item, at, "a file such as ./web.env, or a list of files")
				continue
			}
			content, err := configFile(r.dir, file)
			if err != nil {
				r.at(item, at, "%v", err)
				continue
			}
			// A variable of the caller would differ from one deploy to the next.
			all, err := dotenv.ParseWithLookup(bytes.NewReader([]byte(content)),
				func(string) (string, bool) { return "", false })
			if err != nil {
				r.at(item, at, "%s: %s", file, strings.TrimSpace(err.Error()))
				continue
			}
			maps.Copy(out, all)
		}
		take(out)
	},
}
