package spec

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"pando.run/pando"
)

// Diff returns the lines of two specs that differ, with the lines around them, as a list of lines.
// Each begins with "-" (only in a), "+" (only in b), a space (in both) or "@@" (a place). Equal
// specs have no such lines.
func Diff(a, b pando.Spec) []string {
	text := udiff.Unified("a", "b", string(Format(a)), string(Format(b)))
	_, text, _ = strings.Cut(text, "+++ b\n")
	if text == "" {
		return []string{}
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// Changed lists the keys of a spec file with another value in b than in a, such as scale.max or
// environment.LOG.
func Changed(a, b pando.Spec) []string {
	return changed([]string{}, "", fields, a, b)
}

func changed(out []string, prefix string, table []field, a, b pando.Spec) []string {
	for _, f := range table {
		name := prefix + f.name
		if f.fields != nil {
			out = changed(out, name+".", f.fields, a, b)
			continue
		}
		x, y := f.get(a), f.get(b)
		if same(x, y) {
			continue
		}
		was, pairs := x.(map[string]string)
		if !pairs {
			out = append(out, name)
			continue
		}
		is := y.(map[string]string)
		all := maps.Clone(is)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, was)
		for _, k := range slices.Sorted(maps.Keys(all)) {
			before, had := was[k]
			if now, has := is[k]; had != has || before != now {
				out = append(out, name+"."+k)
			}
		}
	}
	return out
}

// same reports whether two values of a key are equal. No list equals an empty one.
func same(x, y any) bool {
	if reflect.DeepEqual(x, y) {
		return true
	}
	v, w := reflect.ValueOf(x), reflect.ValueOf(y)
	list := v.IsValid() && (v.Kind() == reflect.Slice || v.Kind() == reflect.Map)
	return list && v.Len() == 0 && w.Len() == 0
}
