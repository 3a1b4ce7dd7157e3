package octavia

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"pando.run/pando"
)

// Page is a part of a list.
type Page struct {
	Objects []Object
	Next    string // the marker of the next page; "": this is the last
}

// Choose returns the objects that a query asks for. Each word of an object may be one of the query.
// Words about order and pages are limit, marker, sort_key and sort_dir.
func Choose(k Kind, all []Object, q url.Values) (p Page, err error) {
	for _, word := range slices.Sorted(maps.Keys(q)) {
		value := q.Get(word)
		switch word {
		case "limit", "marker", "sort_key", "sort_dir":
			continue
		case "tags":
			all = slices.DeleteFunc(all, func(o Object) bool { return !hasTags(o, q["tags"]) })
			continue
		}
		known := len(all) == 0
		all = slices.DeleteFunc(all, func(o Object) bool {
			got, has := o[word], word == "loadbalancer_id" || word == "pool_id"
			if _, plain := o[word]; plain {
				has = true
			}
			known = known || has
			switch word {
			case "loadbalancer_id":
				got = firstID(o["loadbalancers"])
			case "pool_id":
				got = firstID(o["pools"])
			}
			return !strings.EqualFold(text(got), value)
		})
		if !known {
			return p, fmt.Errorf("%w: a %s has no %.40q to choose by; leave it out", pando.ErrInvalid, k,
				word)
		}
	}
	order(all, q.Get("sort_key"), q.Get("sort_dir") == "desc")
	return page(all, q)
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

func firstID(v any) any {
	if refs, ok := v.([]Object); ok && len(refs) > 0 {
		return refs[0]["id"]
	}
	return nil
}

func hasTags(o Object, want []string) bool {
	tags, _ := o["tags"].([]string)
	for _, all := range want {
		for t := range strings.SplitSeq(all, ",") {
			if !slices.Contains(tags, t) {
				return false
			}
		}
	}
	return true
}

// order sorts objects by a word, and by the id for equal ones.
func order(all []Object, by string, down bool) {
	slices.SortStableFunc(all, func(a, b Object) int {
		n := strings.Compare(text(a[by]), text(b[by]))
		if by == "" || n == 0 {
			n = strings.Compare(text(a["id"]), text(b["id"]))
		}
		if down {
			return -n
		}
		return n
	})
}

// page cuts the part of a list after the marker.
func page(all []Object, q url.Values) (p Page, err error) {
	if marker := q.Get("marker"); marker != "" {
		at := slices.IndexFunc(all, func(o Object) bool { return o["id"] == marker })
		if at < 0 {
			return p, fmt.Errorf("%w: marker %.40q is not in the list; begin without it",
				pando.ErrInvalid, marker)
		}
		all = all[at+1:]
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return p, fmt.Errorf("%w: limit %.20q: want a number from 1 on", pando.ErrInvalid, text)
		}
		if len(all) > n {
			all = all[:n]
			p.Next = all[n-1]["id"].(string)
		}
	}
	p.Objects = all
	if all == nil {
		p.Objects = []Object{}
	}
	return p, nil
}
