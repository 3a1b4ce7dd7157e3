package state

import (
	"bytes"
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
	var trees [3]tree
	for n, id := range []pando.ObjectID{base, ours, theirs} {
		t, err := m.tree(id)
		if err != nil {
			return ours, err
		}
		trees[n] = t
	}
	b, o, t := index(trees[0]), index(trees[1]), index(trees[2])
	out := slices.Clone(trees[1])
	for _, name := range changedNames(b, o, t) {
		merged, err := m.entries(at+name, b[name], o[name], t[name])
		if err != nil {
			return ours, err
		}
		out = out.without(name)
		for _, e := range merged {
			if !e.id.IsZero() {
				out = out.with(e)
			}
		}
	}
	if len(out) == 0 && at != "" {
		return pando.ObjectID{}, nil
	}
	return m.put(pando.TreeObject, out.encode()), nil
}

func index(t tree) map[string]entry {
	out := make(map[string]entry, len(t))
	for _, e := range t {
		out[e.name] = e
	}
	return out
}

// changedNames are the names that theirs changed, in order. Being equal to ours is no reason to leave one out: two counters
// that both went from 1 to 2 have counted two.
func changedNames(b, o, t map[string]entry) []string {
	var out []string
	for name, e := range t {
		if e != b[name] {
			out = append(out, name)
		}
	}
	for name, e := range b {
		if _, kept := t[name]; !kept && o[name] == e {
			out = append(out, name) // deleted there, untouched here
		} else if _, ours := o[name]; !kept && ours {
			out = append(out, name) // deleted there, changed here
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
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
	var bodies [3][]byte
	for n, e := range []entry{b, o, t} {
		if e.id.IsZero() || e.tree {
			continue
		}
		body, err := m.blob(e.id)
		if err != nil {
			return nil, err
		}
		bodies[n] = body
	}
	var merged []byte
	switch m.types.typeOf(p) {
	case pando.StateCounter:
		merged = mergeCounter(bodies[0], bodies[1], bodies[2])
	case pando.StateSet:
		merged = mergeSet(bodies[0], bodies[1], bodies[2])
	case pando.StateOpaque:
		return m.keepBoth(p, name, o, t), nil
	default:
		if m.later && t != o {
			t.name = name
			return []entry{t}, nil
		}
		return []entry{o}, nil
	}
	return []entry{{name: name, id: m.put(pando.BlobObject, merged)}}, nil
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
