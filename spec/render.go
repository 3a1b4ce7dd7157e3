package spec

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"pando.run/pando"
)

//go:embed schema.json
var schemaJSON []byte

// Schema returns the JSON Schema (draft 2020-12) of one document, for editors. Parse refuses more:
// a schema cannot express conflicts between two fields.
func Schema() []byte { return slices.Clone(schemaJSON) }

func makeSchema() []byte {
	s := objectSchema(fields)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "A service of Pando"
	s["anyOf"] = []any{map[string]any{"required": []any{"command"}},
		map[string]any{"required": []any{"image"}}, map[string]any{"required": []any{"endpoints"}}}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // the table holds a value that JSON cannot encode
	}
	return append(b, '\n')
}

func objectSchema(table []field) map[string]any {
	properties := map[string]any{}
	var required []any
	for _, f := range table {
		s := maps.Clone(f.kind.schema)
		if f.fields != nil {
			s = objectSchema(f.fields)
		}
		s["description"] = f.doc
		properties[f.name] = s
		if f.required {
			required = append(required, f.name)
		}
	}
	s := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if required != nil {
		s["required"] = required
	}
	return s
}

func makeReference() []byte {
	var b strings.Builder
	b.WriteString("# The spec file\n\n<!-- Made from spec/fields.go by: go test ./spec -update -->\n" +
		"\n" +
		"One YAML document describes one service; a file may hold several, divided by `---`. The words " +
		"are Compose's wherever\n" +
		"Compose has the word. Every error names its place: `file:line:col: path: message`.\n\n" +
		"Write durations like `500ms`, `10s`, `1m30s` or `1d12h`; a day has 24 hours.\n\n| key | meaning | default | example |\n" +
		"|---|---|---|---|\n")
	var rows func(prefix string, table []field)
	rows = func(prefix string, table []field) {
		for _, f := range table {
			def, example := f.def, ""
			if f.required {
				def = "required"
			}
			if f.example != "" {
				example = "`" + f.name + ": " + f.example + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", prefix+f.name, f.doc, def, example)
			rows(prefix+f.name+".", f.fields)
		}
	}
	rows("", fields)
	b.WriteString(makeForms())
	b.WriteString("\n## Words of Compose and Kubernetes\n\n<!-- Made from spec/compose.go. -->\n\n" +
		"A key that a spec does not have is an error. For these keys, the error has the text of this " +
		"table.\n\n| there | here |\n|---|---|\n")
	for _, f := range foreigners {
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.word, f.here)
	}
	b.WriteString("| `memory: 64Mi` | `memory: 64M`: it is binary here already |\n" +
		"| `cpus: 500m` | `cpus: 0.5` |\n" +
		"| `restart: unless-stopped` | `restart: always`: a service that was removed is not started " +
		"again |\n" +
		"\n## Probes\n\n`health.startup.probe`, `health.ready` and `health.live` are one of:\n\n" +
		"| probe | an instance is well when |\n|---|---|\n" +
		"| `tcp` or `tcp 7000` | a connection to the first published TCP port, or to this one, is " +
		"accepted |\n| `http GET /ok` or `http GET :7000/ok` | the answer is 200 to 399 |\n" +
		"| `grpc` or `grpc 7000` | the health service of gRPC (grpc.health.v1) answers SERVING |\n" +
		"| `udp` or `udp 53` | an empty datagram to the first published UDP port, or to this one, is " +
		"answered, or not refused within 250 ms |\n" +
		"| `ping` | the machine of an endpoint answers an ICMP echo; of `endpoints` alone |\n" +
		"| `exec CMD` | the command ends with 0; it runs inside the instance, as its user, in its " +
		"folder |\n" +
		"| `started` | its program runs; of `health.ready` alone |\n" +
		"| `reported` | the program reports it, as below; of `health.startup` alone |\n\n" +
		"Without `health.ready`, a program reports that it is ready: by `POST /v1/self/ready` at " +
		"`PANDO_SOCKET`, or by `READY=1` at\n" +
		"`NOTIFY_SOCKET` as sd_notify does. A program that does neither fails after " +
		"`health.ready_within`. Beside\n`health.ready`, a report alone is not enough: the probe has to " +
		"succeed.\n")
	return []byte(b.String())
}

// makeForms returns the table of the words that have no effect in some form of a service.
func makeForms() string {
	var b strings.Builder
	b.WriteString("\n## Where a word has an effect\n\n<!-- Made from spec/forms.go. -->\n\n" +
		"A word without an effect is an error, with its place and a way out, unless it has its default " +
		"value. Every word that\nis not in this table has an effect in each service. A service " +
		"has a kind or none, and its\nprogram is of the host (*program*) or of an image.\n\n| word |")
	for _, c := range columns {
		b.WriteString(" " + c.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	leaves("", fields, func(word string, _ field) {
		row, refused := "| `"+word+"` |", false
		for _, c := range columns {
			cell := " yes |"
			if c.form&(ofProgram|ofImage|ofPortless) != 0 { // as well as a kind
				cell = " |"
			}
			if path, _ := useless(word, c.form); path != "" {
				cell, refused = " no |", true
			}
			row += cell
		}
		if refused {
			b.WriteString(row + "\n")
		}
	})
	return b.String()
}

// Format prints a spec as YAML. Parse reads the same spec from it.
func Format(s pando.Spec) []byte {
	var b strings.Builder
	if len(s.Image.Gave) > 0 {
		s = Own(s).WithDefaults()
	}
	format(&b, "", "", fields, s)
	return []byte(b.String())
}

// format prints the fields of a table below a path. It leaves out defaults of words that have no
// effect in the form of the spec.
func format(b *strings.Builder, path, indent string, table []field, s pando.Spec) {
	for _, f := range table {
		if f.fields != nil {
			var inner strings.Builder
			format(&inner, join(path, f.name), indent+"  ", f.fields, s)
			if inner.Len() > 0 {
				fmt.Fprintf(b, "%s%s:\n%s", indent, f.name, inner.String())
			}
			continue
		}
		v := f.get(s)
		if word, _ := useless(join(path, f.name), formOf(s)); word != "" || isEmptyValue(v) {
			continue
		}
		switch v := v.(type) {
		case map[string]string:
			fmt.Fprintf(b, "%s%s:\n", indent, f.name)
			for _, k := range slices.Sorted(maps.Keys(v)) {
				text := scalar(v[k])
				if f.name == "state" { // a type, or the number of copies
					text = v[k]
				}
				fmt.Fprintf(b, "%s  %s: %s\n", indent, scalar(k), text)
			}
		case flow:
			fmt.Fprintf(b, "%s%s:\n", indent, f.name)
			for _, k := range slices.Sorted(maps.Keys(v)) {
				fmt.Fprintf(b, "%s  %s: %s\n", indent, scalar(k), v[k])
			}
		case configList:
			fmt.Fprintf(b, "%s%s:\n", indent, f.name)
			for _, line := range v.lines() {
				fmt.Fprintf(b, "%s\n", strings.TrimRight(indent+"  "+line, " "))
			}
		case map[string]float64:
			words := make([]string, 0, len(v))
			for _, k := range slices.Sorted(maps.Keys(v)) {
				words = append(words, fmt.Sprintf("%s: %v", k, v[k]))
			}
			fmt.Fprintf(b, "%s%s: {%s}\n", indent, f.name, strings.Join(words, ", "))
		case []string:
			words := make([]string, len(v))
			for i, w := range v {
				words[i] = scalar(w)
			}
			fmt.Fprintf(b, "%s%s: [%s]\n", indent, f.name, strings.Join(words, ", "))
		case string:
			fmt.Fprintf(b, "%s%s: %s\n", indent, f.name, scalar(v))
		default:
			fmt.Fprintf(b, "%s%s: %v\n", indent, f.name, v)
		}
	}
}

// isEmptyValue reports whether a field with this value is not written.
func isEmptyValue(v any) bool {
	rv := reflect.ValueOf(v)
	return rv.IsZero() || (rv.Kind() == reflect.Slice || rv.Kind() == reflect.Map) && rv.Len() == 0
}

var plain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./-]*$`)

// scalar quotes a text that YAML could read as another type.
func scalar(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "on", "off", "y", "n":
	default:
		if plain.MatchString(s) {
			return s
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return string(b)
}
