package api

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
)

// reference returns docs/reference/api.md: both contracts and their types.
func reference(o *huma.OpenAPI, words words) []byte {
	var b bytes.Buffer
	b.WriteString(`# The HTTP APIs

<!-- Made from api/ and the comments of the types by: go test ./api -update -->

Two contracts, each on a unix socket: requests of [operators](#requests-of-operators) to a cluster,
and [requests of an instance](#requests-of-an-instance) to its host. Bodies are JSON of at most
1 MiB. An unknown field is refused, with the probable one. A path with ` + "`..`" + ` is refused.

`)
	problemTable(&b, words)
	b.WriteString(`
## Requests of operators

On ` + "`/run/pando/api.sock`" + ` (mode 0660: a process that can open it can use it). The same
contract for programs is [api/openapi.json](../../api/openapi.json), served at
` + "`GET /openapi.json`" + `. Prometheus reads ` + "`GET /metrics`" + `
and ` + "`GET /metrics/host`" + ` ([metrics](metrics.md)),
git clones ` + "`GET /state/NAME.git`" + ` (read-only).

    curl --unix-socket /run/pando/api.sock http://pando/v1/services/website

A request that changes something takes three optional headers. ` + "`Idempotency-Key`" + ` names the
request, so that a repetition has no effect. ` + "`If-Match`" + ` carries the ETag of a status; the
change is refused if the service has changed since. ` + "`Pando-Operator`" + ` names the operator
in the record.
`)
	for _, path := range slices.Sorted(maps.Keys(o.Paths)) {
		item := o.Paths[path]
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Delete} {
			if op != nil {
				operationText(&b, op)
			}
		}
	}
	b.WriteString("\n## Requests of an instance\n\nOn its own socket, the one that `PANDO_SOCKET` " +
		"names. The socket is the identity: there is no token.\n\n" +
		"An instance may have 64 connections open; one more is answered with 503 and closed. Eight of " +
		"its requests work at a time, and the\n" +
		"others wait. A body has 30 s to arrive. After the first 200 asks, an instance may make 50 a " +
		"second. A reason is one line of at\n" +
		"most 400 bytes, with at most 32 inputs. Uncommitted writes may total 64 MiB; the next write " +
		"is answered with 413.\n\n" +
		"    curl --unix-socket $PANDO_SOCKET -X POST http://self/v1/self/replicate -d '{\"reason\": " +
		"\"812 req/s > 600\"}'\n\n| request | effect | body | answer |\n|---|---|---|---|\n")
	for _, r := range (self{}).routes() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", strings.Replace(r.pattern, "...", "", 1), r.summary,
			code(r.takes), r.answers)
	}
	b.WriteString("\n## Types\n")
	typesText(&b, o, words)
	return b.Bytes()
}

func code(s string) string {
	if !strings.HasPrefix(s, "{") {
		return s
	}
	json, rest, _ := strings.Cut(s, ", or")
	if rest != "" {
		rest = ", or" + rest
	}
	return "`" + json + "`" + rest
}

func problemTable(b *bytes.Buffer, words words) {
	b.WriteString("Every error is a problem (RFC 9457): `{\"title\", \"status\", \"code\", " +
		"\"detail\"}`. `code` is stable, `detail` names the cause and the next step.\n\n" +
		"| code | status | when |\n|---|---|---|\n")
	for _, p := range problems {
		fmt.Fprintf(b, "| `%s` | %d | %s |\n", p.Code, p.Status,
			cmp.Or(words.errors[p.Err.Error()], p.Err.Error()))
	}
	fmt.Fprintf(b, "| `internal` | %d | a defect; the server's log has more |\n",
		http.StatusInternalServerError)
}

func operationText(b *bytes.Buffer, op *huma.Operation) {
	fmt.Fprintf(b, "\n### `%s %s`\n\n%s\n", op.Method, op.Path, op.Summary)
	var lines []string
	for _, p := range op.Parameters {
		if p.In == "header" && p.Name != "Last-Event-ID" || p.Name == "name" || p.Name == "tenant" {
			continue // the same everywhere
		}
		lines = append(lines, fmt.Sprintf("- `%s` (%s): %s", p.Name, p.In, p.Description))
	}
	if op.RequestBody != nil {
		lines = append(lines, "- body: "+link(op.RequestBody.Content["application/json"].Schema))
	}
	status := "200"
	for _, other := range []string{"204", "101"} {
		if op.Responses[status] == nil {
			status = other
		}
	}
	answer := ""
	for kind, m := range op.Responses[status].Content {
		answer = " " + kind
		if kind == "application/json" {
			answer = " " + link(m.Schema)
		}
	}
	lines = append(lines, "- answer: "+status+answer)
	fmt.Fprintf(b, "\n%s\n", strings.Join(lines, "\n"))
}

// link names the type of a schema.
func link(s *huma.Schema) string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		name := s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	case s.Type == huma.TypeArray:
		return "list of " + link(s.Items)
	case s.Type == huma.TypeObject:
		if of, ok := s.AdditionalProperties.(*huma.Schema); ok {
			return "map of " + link(of)
		}
		return "object"
	case s.Format != "" && s.Type == huma.TypeString:
		return s.Format
	}
	return s.Type
}

// typesText writes a table per type: those of the operators' contract and those that only instances
// use.
func typesText(b *bytes.Buffer, o *huma.OpenAPI, words words) {
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	for _, v := range []any{pando.SelfView{}, pando.HaltResult{}, pando.SelfEvent{},
		pando.StateEntry{}, pando.MergeResult{}, pando.Ask{}, pando.Change{}} {
		schemas.Schema(reflect.TypeOf(v), true, "")
	}
	explain(words, schemas)
	all := maps.Clone(o.Components.Schemas.Map())
	for name, s := range schemas.Map() {
		if all[name] == nil {
			all[name] = s
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		fmt.Fprintf(b, "\n### %s\n\n", name)
		if s.Description != "" {
			fmt.Fprintf(b, "%s\n\n", s.Description)
		}
		b.WriteString("| field | type | |\n|---|---|---|\n")
		for _, field := range slices.SortedFunc(maps.Keys(s.Properties),
			func(a, b string) int { return cmp.Compare(a, b) }) {
			p := s.Properties[field]
			text := strings.ReplaceAll(p.Description, "|", "\\|")
			if len(p.Enum) > 0 {
				words := make([]string, len(p.Enum))
				for i, v := range p.Enum {
					words[i] = fmt.Sprintf("`%v`", v)
				}
				text = strings.TrimPrefix(strings.Join(words, ", ")+": "+text, ": ")
				text = strings.TrimSuffix(text, ": ")
			}
			optional := "?"
			if slices.Contains(s.Required, field) {
				optional = ""
			}
			fmt.Fprintf(b, "| `%s`%s | %s | %s |\n", field, optional, link(p), text)
		}
	}
}
