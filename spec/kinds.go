package spec

import (
	"errors"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// kind is a type of value: its reader and its JSON Schema.
type kind struct {
	schema map[string]any
	// read passes the value to take, or reports its error.
	read func(r *reader, n ast.Node, path string, take func(any))
}

// textKind is a scalar that matches a pattern. read may refuse more than the pattern.
func textKind(pattern, want string, types []any, read func(string) (any, error)) kind {
	match := regexp.MustCompile(pattern)
	return kind{
		schema: map[string]any{"type": types, "pattern": pattern},
		read: func(r *reader, n ast.Node, path string, take func(any)) {
			s, ok := text(n)
			_, str := n.(*ast.StringNode)
			if ok && !str && n.Type() != ast.LiteralType && !allows(types, n) {
				ok = false
			}
			if !ok || !match.MatchString(s) {
				r.wrong(n, path, want)
				return
			}
			v, err := read(s)
			if err != nil {
				r.at(n, path, "%v", err)
				return
			}
			take(v)
		},
	}
}

// allows reports whether a scalar that is not a string has one of the JSON types.
func allows(types []any, n ast.Node) bool {
	for _, t := range types {
		switch n.(type) {
		case *ast.IntegerNode:
			if t == "integer" || t == "number" {
				return true
			}
		case *ast.FloatNode:
			if t == "number" {
				return true
			}
		}
	}
	return false
}

var stringOnly = []any{"string"}

func labelKind(what string) kind {
	return textKind(`^[a-z]([a-z0-9-]{0,51}[a-z0-9])?$`,
		fmt.Sprintf("a %s name of 1 to 53 letters a-z, digits and '-', such as website", what),
		stringOnly,
		func(s string) (any, error) { return s, pando.CheckLabel(what, s) })
}

var hostLabelKind = textKind(
	`^[a-z]([a-z0-9-]{0,51}[a-z0-9])?=[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?$`,
	"a label such as zone=a", stringOnly,
	func(s string) (any, error) {
		_, _, err := pando.CutLabel(s)
		return s, err
	})

var pathKind = textKind(`^[^\x00]+$`, "a directory, such as ./site", stringOnly,
	func(s string) (any, error) { return s, nil })

var userKind = textKind(`^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?)$`,
	"a user such as www-data, 1000 or 1000:1000", []any{"string", "integer"},
	func(s string) (any, error) { return s, CheckUser(s) })

// signalPattern has the names of pando.SignalNumber in capitals. signalKind gives each one name.
const signalPattern = `^(SIG)?(HUP|INT|QUIT|ILL|TRAP|ABRT|IOT|BUS|FPE|KILL|USR1|SEGV|USR2|PIPE|ALRM|` +
	`TERM|STKFLT|CHLD|CLD|CONT|STOP|TSTP|TTIN|TTOU|URG|XCPU|XFSZ|VTALRM|PROF|WINCH|IO|POLL|PWR|SYS|` +
	`RTMIN(\+([0-9]|[12][0-9]|30))?|RTMAX(-([0-9]|[12][0-9]|30))?)$`

var signalKind = textKind(signalPattern,
	"a signal such as SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1 or SIGRTMIN+3", stringOnly,
	func(s string) (any, error) { return pando.SignalName(s) })

func enumKind(words ...string) kind {
	return textKind("^("+strings.Join(words, "|")+")$", oneOf(words), stringOnly,
		func(s string) (any, error) { return s, nil })
}

// oneOf returns the words of which a message wants one. The only one stands alone.
func oneOf(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	return "one of " + strings.Join(words, ", ")
}

var durationKind = textKind("^"+span.Pattern+"$", span.Want,
	stringOnly, parseDuration)

// endless is the drain_max that waits for the last connection.
const endless = "none"

var drainKind = textKind("^(none|"+span.Pattern+")$",
	"a duration such as 30s, 10m or 1d, or none to wait for the last connection", stringOnly,
	func(s string) (any, error) {
		if s == endless {
			return float64(pando.DrainForever), nil
		}
		return parseDuration(s)
	})

// parseDuration returns a duration in seconds.
func parseDuration(s string) (any, error) {
	d, err := span.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("%q is too long a duration", s)
	}
	if d <= 0 {
		return nil, fmt.Errorf("%q: must be longer than nothing", s)
	}
	if d > pando.Seconds(SecondsMax) {
		return nil, fmt.Errorf("%q is longer than a year", s)
	}
	return float64(d) / float64(time.Second), nil // d.Seconds adds two roundings
}

func duration(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return span.Seconds(seconds)
}

func integerKind(least, most int) kind {
	k := textKind(`^[0-9]+$`, fmt.Sprintf("a whole number from %d on", least), []any{"integer"},
		func(s string) (any, error) {
			n, err := strconv.Atoi(s)
			if err != nil || n < least || n > most {
				return nil, fmt.Errorf("%s: want a whole number from %d to %d", s, least, most)
			}
			return n, nil
		})
	read := k.read
	k.schema = map[string]any{"type": "integer", "minimum": least, "maximum": most}
	k.read = func(r *reader, n ast.Node, path string, take func(any)) {
		if _, ok := n.(*ast.IntegerNode); !ok {
			r.wrong(n, path, fmt.Sprintf("a whole number from %d on", least))
			return
		}
		read(r, n, path, take)
	}
	return k
}

var numberKind = kind{
	schema: map[string]any{"type": "number", "exclusiveMinimum": 0},
	read: func(r *reader, n ast.Node, path string, take func(any)) {
		const want = "a number above 0, such as 0.5 or 100"
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
		default:
			r.wrong(n, path, want)
			return
		}
		f, err := strconv.ParseFloat(n.GetToken().Value, 64)
		if err != nil || f <= 0 || math.IsInf(f, 0) || math.IsNaN(f) {
			r.wrong(n, path, want)
			return
		}
		take(f)
	},
}

var rateKind = textKind(`^[0-9]*\.?[0-9]*[1-9][0-9]*\.?[0-9]*/(s|m|h)$`,
	"a rate such as 10/s or 30/m", stringOnly,
	func(s string) (any, error) {
		number, unit, _ := strings.Cut(s, "/")
		f, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no number", number)
		}
		return f / map[string]float64{"s": 1, "m": 60, "h": 3600}[unit], nil
	})

func rateText(perSecond float64) string {
	if perSecond == 0 {
		return ""
	}
	return strconv.FormatFloat(perSecond, 'f', -1, 64) + "/s"
}

const bytesPattern = `^[1-9][0-9]*(\.[0-9]+)? ?([bB]|[kK][bB]?|[mM][bB]?|[gG][bB]?)?$`

var bytesKind = textKind(bytesPattern, "an amount of memory such as 64M, 512k or 1.5g", []any{
	"string", "integer",
},
	func(s string) (any, error) {
		number := strings.TrimRight(s, "bBkKmMgG ")
		f, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no number", number)
		}
		unit := strings.ToLower(strings.TrimSpace(s[len(number):]))
		f *= map[string]float64{"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20,
			"g": 1 << 30}[strings.TrimSuffix(unit, "b")]
		if f > 1<<60 {
			return nil, fmt.Errorf("%s is more memory than there is", s)
		}
		return int64(f), nil
	})

var probeKind = textKind(
	`^(started|reported|ping|(tcp|grpc|udp)( [0-9]{1,5})?|https? GET (:[0-9]{1,5})?/[^ ]*( -H .+)*|`+
		`exec .*[^ ].*)$`,
	`a probe: "tcp 7000", "http GET /ok", "http GET :7000/ok", `+
		`"https GET /ok -H 'Host: example.org'", "grpc 7000", "udp 53", "ping", `+
		`"exec CMD", "started" or "reported"`, stringOnly,
	func(s string) (any, error) { return parseProbe(s) })

func parseProbe(s string) (pando.Probe, error) {
	verb, rest, _ := strings.Cut(s, " ")
	p := pando.Probe{Kind: pando.ProbeKind(verb)}
	var err error
	switch p.Kind {
	case pando.ProbeStarted, pando.ProbeReported, pando.ProbePing:
	case pando.ProbeTCP, pando.ProbeGRPC, pando.ProbeUDP:
		if rest != "" {
			p.Port, err = parsePort(rest)
		}
	case pando.ProbeHTTP, pando.ProbeHTTP + "s":
		err = parsePage(&p, strings.TrimPrefix(rest, "GET "))
	default:
		if p.Command, err = split(rest); err == nil && len(p.Command) == 0 {
			err = fmt.Errorf("exec needs a command")
		}
	}
	return p, err
}

// parsePage reads [:PORT]/PATH [-H 'NAME: VALUE']... of a probe by HTTP.
func parsePage(p *pando.Probe, text string) error {
	p.Kind, p.TLS = pando.ProbeHTTP, p.Kind != pando.ProbeHTTP
	where, rest, _ := strings.Cut(text, " ")
	i := strings.IndexByte(where, '/')
	p.Path = where[i:]
	if i > 0 {
		var err error
		if p.Port, err = parsePort(where[1:i]); err != nil {
			return err
		}
	}
	words, err := split(rest)
	for n := 0; err == nil && n < len(words); n += 2 {
		if words[n] != "-H" || n+1 == len(words) {
			return fmt.Errorf("%q: want -H 'NAME: VALUE'", words[n])
		}
		name, value, _ := strings.Cut(words[n+1], ":")
		header := name + ": " + strings.TrimSpace(value)
		p.Headers, err = append(p.Headers, header), checkHeader(header)
	}
	return err
}

// headersMax bounds the headers of a probe.
const headersMax = 16

var headerForm = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}: [\\t -~]{1,512}$")

func checkHeader(s string) error {
	name, _, _ := strings.Cut(s, ":")
	switch {
	case !headerForm.MatchString(s):
		return fmt.Errorf("header %q: want NAME: VALUE in ASCII", s)
	case slices.Contains([]string{"connection", "content-length", "transfer-encoding"},
		strings.ToLower(name)):
		return fmt.Errorf("header %q: the probe sets it by itself", name)
	}
	return nil
}

func probeText(p pando.Probe) string {
	port := ""
	if p.Port != 0 {
		port = strconv.Itoa(int(p.Port))
	}
	switch p.Kind {
	case pando.ProbeTCP, pando.ProbeGRPC, pando.ProbeUDP:
		return strings.TrimSuffix(string(p.Kind)+" "+port, " ")
	case pando.ProbeHTTP:
		if port != "" {
			port = ":" + port
		}
		text := map[bool]string{false: "http", true: "https"}[p.TLS] + " GET " + port + p.Path
		for _, h := range p.Headers {
			text += " -H " + quote([]string{h})
		}
		return text
	case pando.ProbeExec:
		return "exec " + quote(p.Command)
	case pando.ProbeStarted, pando.ProbeReported, pando.ProbePing:
		return string(p.Kind)
	}
	return ""
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %s: want 1 to 65535", s)
	}
	return uint16(n), nil
}

// metrics maps the words of the file to the scaler's metrics.
var metrics = map[string]pando.Metric{"connections/s": pando.ByConnections,
	"packets/s": pando.ByPackets}

func metricText(m pando.Metric) string {
	for word, metric := range metrics {
		if metric == m {
			return word
		}
	}
	return string(m)
}

// metricOf returns the scaler's metric of a word of the file.
func metricOf(word string) pando.Metric {
	if m, ok := metrics[word]; ok {
		return m
	}
	return pando.Metric(word)
}

// byValue is `scale.by` in either form.
type byValue struct {
	metric pando.Metric
	target float64
}

var metricKind = textKind(`^(connections/s|packets/s|[a-z][a-z0-9_.-]{0,62})$`,
	"one of connections/s, packets/s, score, or a number of the application such as queue_depth",
	stringOnly, func(s string) (any, error) {
		if err := metricOf(s).Check(); err != nil {
			return nil, errors.New(strings.TrimPrefix(err.Error(), pando.ErrInvalid.Error()+": "))
		}
		return s, nil
	})

var byKind = kind{
	schema: map[string]any{"oneOf": []any{metricKind.schema, map[string]any{
		"type": "object", "additionalProperties": false, "required": []any{"metric", "target"},
		"properties": map[string]any{"metric": metricKind.schema, "target": numberKind.schema},
	}}},
	read: func(r *reader, n ast.Node, path string, take func(any)) {
		if _, ok := text(n); ok {
			metricKind.read(r, n, path, func(v any) { take(byValue{metric: metricOf(v.(string))}) })
			return
		}
		var by byValue
		r.members(n, path, "a metric such as connections/s, or a map with metric and target", []field{
			{name: "metric", doc: "connections/s, packets/s or a number of the application",
				required: true, kind: metricKind,
				set: func(_ *pando.Spec, v any) { by.metric = metricOf(v.(string)) }},
			{name: "target", doc: "of the metric, per instance", required: true, kind: numberKind,
				set: func(_ *pando.Spec, v any) { by.target = v.(float64) }},
		})
		take(by)
	},
}

// members reads the long form of a value. Its fields belong to the value, not to the spec.
func (r *reader) members(n ast.Node, path, want string, table []field) bool {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		before := len(r.problems)
		r.object(n, path, table, nil)
		return len(r.problems) == before
	}
	r.wrong(n, path, want)
	return false
}

var scalarTypes = []any{"string", "number", "boolean"}

var pairsKind = kind{
	schema: map[string]any{"oneOf": []any{
		map[string]any{"type": "object", "additionalProperties": map[string]any{"type": scalarTypes},
			"propertyNames": map[string]any{"pattern": "^[^=\x00]+$"}},
		map[string]any{
			"type": "array", "items": map[string]any{"type": "string", "pattern": "^[^=\x00]+="},
		},
	}},
	read: func(r *reader, n ast.Node, path string, take func(any)) {
		const want = "a map such as {KEY: value} or a list such as [KEY=value]"
		out := map[string]string{}
		if list, ok := n.(*ast.SequenceNode); ok {
			for i, item := range list.Values {
				at := fmt.Sprintf("%s[%d]", path, i)
				s, _ := text(item)
				k, v, ok := strings.Cut(s, "=")
				_, twice := out[k]
				switch {
				case !ok || k == "" || item.Type() != ast.StringType:
					r.wrong(item, at, "KEY=value")
				case twice:
					r.at(item, at, "%s is here twice", k)
				default:
					out[k] = v
				}
			}
			take(out)
			return
		}
		pairs, _ := r.pairs(n, path, want)
		for _, p := range pairs {
			v, ok := text(p.value)
			switch {
			case p.key == "" || strings.Contains(p.key, "="):
				r.at(p.where, join(path, p.key), "a name is not empty and has no '='")
			case !ok:
				r.wrong(p.value, join(path, p.key), "a text or a number")
			default:
				out[p.key] = v
			}
		}
		take(out)
	},
}

var stateTypes = []string{string(pando.StateCounter), string(pando.StateSet),
	string(pando.StateLog), string(pando.StateLast), string(pando.StateOpaque)}

const statePathPattern = `^[^/\x00]+(/[^/\x00]+)*$`

var stateTypeKind = enumKind(stateTypes...)

// stated is the value of the word state.
type stated struct {
	types  map[string]pando.StateType
	copies int
}

// copiesWord is the one word of state with a number. A path of this name has a type instead.
const copiesWord = "copies"

var stateKind = kind{
	schema: map[string]any{"type": "object", "additionalProperties": stateTypeKind.schema,
		"properties": map[string]any{copiesWord: map[string]any{"anyOf": []any{
			map[string]any{"type": "integer", "minimum": 1, "maximum": pando.CopiesMax},
			stateTypeKind.schema}}},
		"propertyNames": map[string]any{"pattern": statePathPattern}},
	read: func(r *reader, n ast.Node, where string, take func(any)) {
		out := stated{types: map[string]pando.StateType{}}
		match := regexp.MustCompile(statePathPattern)
		pairs, _ := r.pairs(n, where, "a map of paths and types, such as {hits: counter}")
		for _, p := range pairs {
			if p.key == copiesWord && p.value.Type() == ast.IntegerType {
				integerKind(1, pando.CopiesMax).read(r, p.value, join(where, p.key),
					func(v any) { out.copies = v.(int) })
				continue
			}
			if _, err := path.Match(p.key, ""); err != nil || !match.MatchString(p.key) ||
				path.Clean(p.key) != p.key || strings.HasPrefix(p.key, "..") {
				r.at(p.where, join(where, p.key), "want a relative path such as hits, access.log or sessions/*")
				continue
			}
			stateTypeKind.read(r, p.value, join(where, p.key),
				func(v any) { out.types[p.key] = pando.StateType(v.(string)) })
		}
		take(out)
	},
}

func stateWords(s pando.Spec) map[string]string {
	out := make(map[string]string, len(s.State)+1)
	for k, v := range s.State {
		out[k] = string(v)
	}
	if s.StateCopies > 0 {
		out[copiesWord] = strconv.Itoa(s.StateCopies)
	}
	return out
}

// listKind is a list of texts. read turns one into a value.
func listKind[T any](
	want string, item map[string]any, read func(string) (T, error),
) kind {
	return kind{
		schema: map[string]any{"type": "array", "minItems": 1, "items": item},
		read: func(r *reader, n ast.Node, where string, take func(any)) {
			list, ok := n.(*ast.SequenceNode)
			if !ok || len(list.Values) == 0 {
				r.wrong(n, where, "a list such as "+want)
				return
			}
			var out []T
			for i, item := range list.Values {
				at := fmt.Sprintf("%s[%d]", where, i)
				s, ok := text(item)
				if !ok {
					r.wrong(item, at, "a text")
					continue
				}
				v, err := read(s)
				if err != nil {
					r.at(item, at, "%v", err)
					continue
				}
				out = append(out, v)
			}
			take(out)
		},
	}
}
