package api

import (
	"encoding/json"
	"testing"
	"time"

	"pando.run/pando"
)

// null never stands for a number, a text or a truth value. What the own client sends passes.
func TestNullIsNoValue(t *testing.T) {
	for _, c := range []struct {
		body string
		into any
		want string
	}{
		{`{"queue": null}`, &map[string]float64{},
			"invalid: body.queue is null: leave it out, or give it a value"},
		{`null`, &map[string]float64{}, ""},
		{`{"instances": 3, "for_seconds": null}`, &Pinned{},
			"invalid: body.for_seconds is null: leave it out, or give it a value"},
		{`{"to": null}`, &GoingBack{}, "invalid: body.to is null: leave it out, or give it a value"},
		{`{"ports": [{"published": null}]}`, &pando.Spec{},
			"invalid: body.ports.0.published is null: leave it out, or give it a value"},
		{`{"scale": {"min": null}}`, &pando.Spec{},
			"invalid: body.scale.min is null: leave it out, or give it a value"},
		{`{"command": null, "environment": null, "ports": null}`, &pando.Spec{}, ""},
		{`{"command": ["null"]}`, &pando.Spec{}, ""},
		{`{"at": null}`, &struct {
			At time.Time `json:"at"`
		}{}, ""},
	} {
		got := ""
		if err := checkNulls([]byte(c.body), c.into); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.body, got, c.want)
		}
	}
	for _, v := range []any{&pando.Spec{}, &pando.RunAsk{}, &pando.SessionSpec{}, &Pinned{}} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkNulls(b, v); err != nil {
			t.Errorf("%T as the client sends it: %v", v, err)
		}
	}
}
