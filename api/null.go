package api

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"pando.run/pando"
)

// checkNulls refuses null in place of a number, a text or a truth value: null is not zero. The
// decoder would take it for the zero value. A list, a map and an optional object may be null; an optional
// number is left out.
func checkNulls(data []byte, v any) error {
	if !bytes.Contains(data, []byte("null")) {
		return nil
	}
	var raw any
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil // the decoder explains it better
	}
	at, found := nullIn(reflect.TypeOf(v).Elem(), raw)
	if !found {
		return nil
	}
	return fmt.Errorf("%w: %s is null: leave it out, or give it a value", pando.ErrInvalid,
		strings.Join(append([]string{"body"}, at...), "."))
}

var readers = []reflect.Type{
	reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
}

// nullIn returns the path of a null that stands for a value of a type without one.
func nullIn(t reflect.Type, raw any) (path []string, found bool) {
	for t.Kind() == reflect.Pointer {
		if raw == nil && t.Elem().Kind() == reflect.Struct {
			return nil, false
		}
		t = t.Elem()
	}
	if slices.ContainsFunc(readers, reflect.PointerTo(t).Implements) {
		return nil, false
	}
	within := func(name string, t reflect.Type, raw any) bool {
		below, ok := nullIn(t, raw)
		if ok {
			path, found = append([]string{name}, below...), true
		}
		return ok
	}
	switch all := raw.(type) {
	case nil:
		return nil, t.Kind() == reflect.Bool || t.Kind() == reflect.String ||
			t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64
	case []any:
		for n, one := range all {
			if t.Kind() == reflect.Slice && within(fmt.Sprint(n), t.Elem(), one) {
				return path, found
			}
		}
	case map[string]any:
		if t.Kind() == reflect.Map {
			for k, one := range all {
				if within(k, t.Elem(), one) {
					return path, found
				}
			}
		}
		if t.Kind() != reflect.Struct {
			return nil, false
		}
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if one, there := all[name]; there && f.IsExported() && within(name, f.Type, one) {
				return path, found
			}
		}
	}
	return nil, false
}
