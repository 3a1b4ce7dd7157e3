package api

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
)

// checkNames refuses a path or a query with an invalid name of a service or a tenant. A host that gets such a
// name refuses it, and the answer would blame the host.
func checkNames(in any) error {
	v := reflect.ValueOf(in).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		param, _, _ := strings.Cut(f.Tag.Get("query"), ",")
		where := "query"
		if param == "" {
			param, where = f.Tag.Get("path"), "path"
		}
		if param == "" || !f.IsExported() {
			continue
		}
		var names []string
		kind := "service"
		switch is := v.FieldByIndex(f.Index).Interface().(type) {
		case pando.ServiceName:
			names = append(names, string(is))
		case pando.Tenant:
			names, kind = append(names, string(is)), "tenant"
		case []pando.ServiceName:
			for _, one := range is {
				if one == "" {
					return fmt.Errorf("%w: %s.%s: is empty", pando.ErrInvalid, where, param)
				}
				names = append(names, string(one))
			}
		}
		for _, name := range names {
			if name == "" {
				continue
			}
			if err := pando.CheckLabel(kind, name); err != nil {
				return fmt.Errorf("%s.%s: %w", where, param, err)
			}
		}
	}
	return nil
}

// givenEmpty refuses a number, a time, a truth value or one of few words that a query names without a
// value. The library takes it for one that is not named.
func givenEmpty(c huma.Context, next func(huma.Context)) {
	u := c.URL()
	for param, values := range u.Query() {
		for _, p := range c.Operation().Parameters {
			if p.In != "query" || p.Name != param || values[0] != "" {
				continue
			}
			s := p.Schema
			if s.Type != huma.TypeString && s.Type != huma.TypeArray || s.Format != "" || len(s.Enum) > 0 {
				writeProblem(c, problemOf(fmt.Errorf("%w: query.%s: is empty: leave it out, or give it a "+
					"value", pando.ErrInvalid, param), nil))
				return
			}
		}
	}
	next(c)
}

// writeProblem answers a request by a problem.
func writeProblem(c huma.Context, p *Problem) {
	c.SetHeader("Content-Type", p.ContentType(""))
	c.SetStatus(p.Status)
	_ = asJSON.Marshal(c.BodyWriter(), p) // the caller is gone
}
