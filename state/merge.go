package state

import (
	"bytes"
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"pando.run/pando"
)

// merge is a three-way merge of two trees that grew from one base:
//
//	            ┌──── ours (main) ────┐
//	base ───────┤                     ├──► merged
//	            └── theirs (branch) ──┘
//
// What changed on one side only is taken; what changed on both is merged by the type of its path. A conflict is a value
// (both versions are kept and the path is named), never an error.
type merge struct {
	*work
	types  types
	branch pando.InstanceID // names the version that loses its path
	later  bool             // theirs is the later writer
	result pando.MergeResult
}

// folders merges one folder of the tree; at is its path, "" for the root or ending in "/".
func (m *merge) folders(at string, base, ours, theirs pando.ObjectID) (pando.ObjectID, error) {
	switch {
	case theirs == base:
		return ours, nil
	case ours == base && at != "":
		m.result.Taken++
		return theirs, nil
	}
	before, err := m.folder(base)
	if err != nil {
		return ours, err
	}
	after, err := m.folder(theirs)
	if err != nil {
		return ours, err
	}
	their, err := changes(read(before), read(after))
	if err != nil {
		return ours, err
	}
	into, err := m.tree(ours)
	if err != nil {
		return ours, err
	}
	edits := make([]edit, 0, len(their))
	for _, c := range their {
		o, _ := into.find(c.name)
		if c.theirs.id.IsZero() && o.id.IsZero() {
			continue // deleted on both sides
		}
		now, err := m.entries(at+c.name, c.base, o, c.theirs)
		if err != nil {
			return ours, err
		}
		edits = append(edits, edit{c.name, now})
	}
	out := into.edit(edits)
	if len(out) == 0 && at != "" {
		return pando.ObjectID{}, nil
	}
	return m.put(pando.TreeObject, out), nil
}

// changed is a name that one side changed: what it stood for and what it stands for, zero for nothing.
type changed struct {
	name         string
	base, theirs entry
}

// changes are the names that theirs changed. Being equal to ours is no reason to leave one out: two counters that both
// went from 1 to 2 have counted two.
func changes(base, theirs lines) (out []changed, err error) {
	kinds := map[string]int{} // of names that changed their kind: two entries with one name, not beside each other
	add := func(c changed) {
		if n, ok := kinds[c.name]; ok {
			out[n].base, out[n].theirs = cmp.Or(out[n].base, c.base), cmp.Or(out[n].theirs, c.theirs)
			return
		}
		if c.base == (entry{}) || c.theirs == (entry{}) {
			kinds[c.name] = len(out)
		}
		out = append(out, c)
	}
	var b, t entry // the next of each; none has no name
	next := func(e *entry, of *lines) {
		*e = entry{}
		if *of != "" && err == nil {
			*e, *of, err = of.first()
		}
	}
	next(&b, &base)
	next(&t, &theirs)
	for err == nil && (b.name != "" || t.name != "") {
		order := first(b, t)
		switch {
		case order < 0:
			add(changed{name: b.name, base: b})
		case order > 0:
			add(changed{name: t.name, theirs: t})
		case b.id != t.id:
			add(changed{name: b.name, base: b, theirs: t})
		}
		if order <= 0 {
			next(&b, &base)
		}
		if order >= 0 {
			next(&t, &theirs)
		}
	}
	return out, err
}

// first says which of two entries comes first: negative the one, positive the other, zero both.
func first(a, b entry) int {
	switch {
	case a.name == "":
		return 1
	case b.name == "":
		return -1
	}
	return compare(a, b)
}

// entries merges what one name stands for; the result is usually one entry, two when both versions are kept.
func (m *merge) entries(p string, b, o, t entry) ([]entry, error) {
	name := p[strings.LastIndex(p, "/")+1:]
	if o == b {
		m.result.Taken++
		t.name = name
		return []entry{t}, nil
	}
	if m.types.typeOf(p) == pando.StateLog && (t.tree || t.id.IsZero()) && (o.tree || o.id.IsZero()) {
		m.result.Merged++
		return m.logs(name, b, o, t)
	}
	if t.tree && o.tree {
		var from pando.ObjectID
		if b.tree {
			from = b.id
		}
		id, err := m.folders(p+"/", from, o.id, t.id)
		return []entry{{name: name, tree: true, id: id}}, err
	}
	m.result.Merged++
	if t.tree != o.tree && !t.id.IsZero() && !o.id.IsZero() {
		return m.keepBoth(p, name, o, t), nil
	}
	return m.leaves(p, name, b, o, t)
}

// logs puts what theirs appended since the base behind ours.
func (m *merge) logs(name string, b, o, t entry) ([]entry, error) {
	if t.id.IsZero() {
		return []entry{o}, nil // deleted there: what was appended here is not known there, so it stays
	}
	from, err := m.endOf(b.id)
	if err != nil {
		return nil, err
	}
	lines, err := m.since(t.id, from)
	if err != nil {
		return nil, err
	}
	id, err := m.append(o.id, lines)
	return []entry{{name: name, tree: true, id: id}}, err
}

// leaves merges two files by the type of their path.
func (m *merge) leaves(p, name string, b, o, t entry) ([]entry, error) {
	switch typ := m.types.typeOf(p); {
	case typ == pando.StateCounter:
		return m.contents(name, mergeCounter, b, o, t)
	case typ == pando.StateSet:
		return m.contents(name, mergeSet, b, o, t)
	case typ == pando.StateOpaque:
		return m.keepBoth(p, name, o, t), nil
	case m.later && t != o:
		t.name = name
		return []entry{t}, nil
	}
	return []entry{o}, nil
}

// contents merges what is in two files.
func (m *merge) contents(name string, with func(base, ours, theirs []byte) []byte, files ...entry) ([]entry, error) {
	var bodies [3][]byte
	for n, e := range files {
		if e.id.IsZero() || e.tree {
			continue
		}
		body, err := m.blob(e.id)
		if err != nil {
			return nil, err
		}
		bodies[n] = body
	}
	return []entry{{name: name, id: m.put(pando.BlobObject, with(bodies[0], bodies[1], bodies[2]))}}, nil
}

// keepBoth keeps ours at the path and theirs beside it. A deletion loses against a change.
func (m *merge) keepBoth(p, name string, o, t entry) []entry {
	switch {
	case t.id.IsZero() || t == o:
		return []entry{o}
	case o.id.IsZero():
		t.name = name
		return []entry{t}
	}
	m.result.Conflicts = append(m.result.Conflicts, p)
	beside := t
	beside.name = name + ".conflict-" + string(m.branch)
	return []entry{o, beside}
}

// mergeCounter adds what theirs added since the base.
func mergeCounter(base, ours, theirs []byte) []byte {
	sum := new(big.Int).Add(number(ours), number(theirs))
	return []byte(sum.Sub(sum, number(base)).String())
}

// number reads a counter; what is no number counts as zero.
func number(b []byte) *big.Int {
	n, ok := new(big.Int).SetString(strings.TrimSpace(string(b)), 10)
	if !ok {
		return new(big.Int)
	}
	return n
}

// mergeSet adds what theirs added and takes out what theirs took out.
func mergeSet(base, ours, theirs []byte) []byte {
	b, o, t := members(base), members(ours), members(theirs)
	for v := range t {
		if !b[v] {
			o[v] = true
		}
	}
	for v := range b {
		if !t[v] {
			delete(o, v)
		}
	}
	return setOf(o)
}

func members(b []byte) map[string]bool {
	out := map[string]bool{}
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		if len(line) > 0 {
			out[string(line)] = true
		}
	}
	return out
}

func setOf(m map[string]bool) []byte {
	var lines []string
	for v := range m {
		lines = append(lines, v+"\n")
	}
	slices.Sort(lines)
	return []byte(strings.Join(lines, ""))
}

// describe is the message of a merge commit.
func (m *merge) describe() string {
	s := fmt.Sprintf("merge %s: %d taken, %d merged", m.branch, m.result.Taken, m.result.Merged)
	if len(m.result.Conflicts) > 0 {
		s += "\n\nconflict: " + strings.Join(m.result.Conflicts, "\nconflict: ")
	}
	return s
}
