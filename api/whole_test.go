package api

import (
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestWholeNumbersAreIntegers(t *testing.T) {
	for in, want := range map[string]string{
		`{"to": 4804185.0}`:                `{"to": 4804185}`,
		`[56.0,1e3,-2.0E1,0.5,3]`:          `[56,1000,-20,0.5,3]`,
		`{"a 1.0": "1.0 \" 2.0", "b":1.0}`: `{"a 1.0": "1.0 \" 2.0", "b":1}`,
		`1e300`:                            `1e300`,
		`{"a": 1.`:                         `{"a": 1.`, // invalid, and stays so
		`"open 1.0`:                        `"open 1.0`,
		``:                                 ``,
	} {
		if got := string(wholeNumbers([]byte(in))); got != want {
			t.Errorf("%s becomes %s, want %s", in, got, want)
		}
	}
	var p Pinned
	if err := asJSON.Unmarshal([]byte(`{"instances": 56.0, "for_seconds": 1.5}`), &p); err != nil ||
		p != (Pinned{Instances: 56, ForSeconds: 1.5}) {
		t.Errorf("%+v, %v", p, err)
	}
}

// No value changes, whatever the JSON text is.
func TestWholeNumbersChangeNoValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.Marshal(rapid.MapOf(rapid.String(), rapid.Float64Range(-1e18, 1e18)).Draw(t, "v"))
		if err != nil {
			t.Fatal(err)
		}
		var was, is any
		if err := json.Unmarshal(text, &was); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(wholeNumbers(text), &is); err != nil || !reflect.DeepEqual(was, is) {
			t.Fatalf("%s becomes %s (%v)", text, wholeNumbers(text), err)
		}
	})
}
