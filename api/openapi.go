package api

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/spec/nearest"
)

// openAPI is the operators' contract as an OpenAPI 3.1 document. `go test ./api -update` generates
// it from routes and from the comments of the types.
//
//go:embed openapi.json
var openAPI []byte

// document returns the empty contract, to which routes are added.
func document() huma.Config {
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Pando: the operators' API", Version: "1",
				Description: "Operators and their programs change and read a cluster by this API. It is " +
					"served on a unix socket, /run/pando/api.sock. A process that can open the socket can " +
					"use it. Errors are problems (RFC 9457) with a stable `code`. A repeated request with " +
					"the same Idempotency-Key has no effect while its service stores the first one: the 300 " +
					"newest decisions, and 20 without a change. A key that names another request is refused with " +
					"422. A request with If-Match is refused with 409 " +
					"if the service has changed since.",
			},
			Components: &huma.Components{Schemas: schemas},
		},
		Formats:       map[string]huma.Format{"application/json": asJSON, "json": asJSON},
		DefaultFormat: "application/json",
	}
}

// asJSON writes an answer whole and ignores a caller that has left. The library would take that for
// a value without JSON and answer with a second status or a panic.
var asJSON = huma.Format{
	Marshal: func(w io.Writer, v any) error {
		var b bytes.Buffer
		if err := huma.DefaultJSONFormat.Marshal(&b, v); err != nil {
			return err
		}
		_, _ = b.WriteTo(w)
		return nil
	},
	Unmarshal: func(data []byte, v any) error {
		data = wholeNumbers(data)
		if err := checkNulls(data, v); err != nil {
			return err
		}
		return huma.DefaultJSONFormat.Unmarshal(data, v)
	},
}

// route adds an operation. pattern is its method and path.
func route[I, O any](
	a huma.API, id, pattern, summary string, do func(context.Context, *I) (*O, error),
) {
	huma.Register(a, operation(a, id, pattern, summary), func(ctx context.Context, in *I) (*O, error) {
		var out *O
		err := checkNames(in)
		if err == nil {
			out, err = do(ctx, in)
		}
		if err = settled(ctx, err); err != nil {
			namedOf(ctx).ended(err)
			return nil, problemOf(err, nil)
		}
		return out, nil
	})
}

// stream adds an operation with an endless answer.
func stream[I any](a huma.API, id, pattern, kind, summary string,
	begin func(context.Context, *I) (func(*sender), error)) {
	op := operation(a, id, pattern, summary)
	text := &huma.Schema{Type: huma.TypeString}
	if kind == "text/event-stream" {
		// The schema of the data of each event.
		text.Extensions = map[string]any{
			"contentMediaType": "application/json",
			"contentSchema": a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[pando.Change](), true,
				""),
		}
	}
	op.Responses = map[string]*huma.Response{"200": {Description: "OK",
		Content: map[string]*huma.MediaType{kind: {Schema: text}}}}
	huma.Register(a, op, func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
		err := checkNames(in)
		if err != nil {
			return nil, problemOf(err, nil)
		}
		do, err := begin(ctx, in)
		if err != nil {
			return nil, problemOf(err, nil)
		}
		return &huma.StreamResponse{Body: func(c huma.Context) {
			c.SetHeader("Content-Type", kind+"; charset=utf-8")
			c.SetHeader("Cache-Control", "no-store")
			c.SetStatus(http.StatusOK)
			to := newSender(c.BodyWriter())
			to.send(nil) // do meets a caller that is gone, and gives back what it holds
			do(to)
		}}, nil
	})
}

// schemasOf is the metadata key of the schemas that an operation's body refers to.
const schemasOf = "schemas"

func operation(a huma.API, id, pattern, summary string) huma.Operation {
	method, path, _ := strings.Cut(pattern, " ")
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary,
		MaxBodyBytes: bodyBytesMax, RejectUnknownQueryParameters: true, Errors: []int{},
		BodyReadTimeout: -1, // a deadline would also end a request that waits for its answer
		Metadata:        map[string]any{schemasOf: a.OpenAPI().Components.Schemas},
	}
}

// sender writes a stream so that each piece arrives at once.
type sender struct {
	w     io.Writer
	flush func() error
}

func newSender(w io.Writer) *sender {
	s := &sender{w: w, flush: func() error { return nil }}
	if rw, ok := w.(http.ResponseWriter); ok {
		s.flush = http.NewResponseController(rw).Flush
	}
	return s
}

// send writes b and reports whether the other side is still connected.
func (s *sender) send(b []byte) bool {
	if _, err := s.w.Write(b); err != nil {
		return false
	}
	return s.flush() == nil
}

// The library that checks requests makes its errors through two hooks. They are set here once, so
// that its refusals look like all others.
func init() {
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		return refused(nil, status, message, errs)
	}
	huma.NewErrorWithContext = func(
		c huma.Context, status int, message string, errs ...error,
	) huma.StatusError {
		return refused(c, status, message, errs)
	}
}

// refused returns the problem of a request that the contract does not allow: the wrong place, and
// the probably intended name.
func refused(c huma.Context, status int, message string, errs []error) *Problem {
	var said []string
	for _, err := range errs {
		d, ok := err.(huma.ErrorDetailer)
		if !ok {
			said = append(said, err.Error())
			continue
		}
		detail := d.ErrorDetail()
		text := detail.Message
		if detail.Location != "" {
			text = detail.Location + ": " + text
		}
		said = append(said, text+meant(c, detail))
	}
	if len(said) > 0 {
		message = strings.Join(said, "; ")
	}
	switch status {
	case 0: // the library asks for an empty problem
		return &Problem{}
	case http.StatusRequestEntityTooLarge:
		return problemOf(fmt.Errorf("the body: %w: at most %d bytes", pando.ErrTooLarge, bodyBytesMax),
			nil)
	case http.StatusInternalServerError:
		return problemOf(fmt.Errorf("%s", message), nil)
	}
	return problemOf(fmt.Errorf("%w: %s", pando.ErrInvalid, message), nil)
}

// meant suggests the nearest known name for an unknown field or parameter.
func meant(c huma.Context, d *huma.ErrorDetail) string {
	if c == nil {
		return ""
	}
	op := c.Operation()
	where, name := "", d.Location
	if i := strings.LastIndexByte(d.Location, '.'); i >= 0 {
		where, name = d.Location[:i], d.Location[i+1:]
	}
	var known []string
	switch {
	case where == "query" && d.Message == "unknown query parameter":
		for _, p := range op.Parameters {
			if p.In == "query" {
				known = append(known, p.Name)
			}
		}
	case d.Message == "unexpected property" && op.RequestBody != nil:
		known = properties(op.Metadata[schemasOf].(huma.Registry),
			op.RequestBody.Content["application/json"].Schema, where)
	}
	if best := nearest.Word(name, known); best != "" {
		return fmt.Sprintf(": did you mean %q?", best)
	}
	if len(known) > 0 {
		return ": known are " + strings.Join(known, ", ")
	}
	return ""
}

// properties lists the fields that an object of the body may have. where is the object's place,
// such as body.health or body.ports[0].
func properties(schemas huma.Registry, s *huma.Schema, where string) []string {
	resolve := func(s *huma.Schema) *huma.Schema {
		if s != nil && s.Ref != "" {
			return schemas.SchemaFromRef(s.Ref)
		}
		return s
	}
	s = resolve(s)
	for part := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(where, "body"), "."),
		".") {
		name, _, list := strings.Cut(part, "[")
		if s != nil && name != "" {
			s = resolve(s.Properties[name])
		}
		if s != nil && list {
			s = resolve(s.Items)
		}
	}
	if s == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(s.Properties))
}
