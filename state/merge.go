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
// A change on one side is taken. A change on both sides is merged by the type of its path. A
// conflict is a value, never an error: both versions stay, and the result names the path.
type merge struct {
	*work
	types  types
	branch pando.InstanceID // names the version that loses its path
	later  bool             // theirs is the later writer
	result pando.MergeResult
}

// folders merges one folder of the tree. at is its path: "" for the root, else ending in "/".
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
	into, err := m.folder(ours)
	if err != nil {
		return ours, err
	}
	edits, err := m.edits(at, before, after, into)
	if err != nil {
		return ours, err
	}
	body, splices, err := into.edit(edits)
	if err != nil {
		return ours, err
	}
	if len(body) == 0 && at != "" {
		return pando.ObjectID{}, nil
	}
	return m.derive(ours, body, splices), nil
}

// edits returns the changes to ours from the merge of a folder.
func (m *merge) edits(at string, base, theirs, ours tree) ([]entry, error) {
	their, err := changes(base, theirs)
	if err != nil {
		return nil, err
	}
	suffix := conflictMark + string(m.branch)
	// Names that end in suffix: taken have a value of theirs, kept hold versions that lost their
	// paths.
	var taken, kept map[string]bool
	for _, c := range their {
		if !strings.HasSuffix(c.name, suffix) {
			continue
		}
		if kept == nil { // else all names of lost versions are new and different
			taken, kept = map[string]bool{}, map[string]bool{}
		}
		if c.theirs != "" {
			taken[c.name] = true
		}
	}
	edits := make([]entry, 0, len(their)+len(their)/2)
	for _, c := range their {
		b, err := c.base.only()
		if err != nil {
			return nil, err
		}
		t, err := c.theirs.only()
		if err != nil {
			return nil, err
		}
		o, err := ours.seek(c.name)
		if err != nil {
			return nil, err
		}
		if t.id.IsZero() && (o.id.IsZero() || kept[c.name]) {
			continue // deleted on both sides, or a new conflict copy took the name
		}
		now, beside, err := m.entry(at+c.name, b, o, t)
		if err != nil {
			return nil, err
		}
		now.name = c.name
		edits = replaced(edits, o, now)
		if beside.id.IsZero() {
			continue
		}
		for beside.name = c.name + suffix; taken[beside.name] || kept[beside.name]; {
			beside.name += suffix
		}
		if kept != nil {
			kept[beside.name] = true
		}
		ahead := ours
		was, err := ahead.seek(beside.name)
		if err != nil {
			return nil, err
		}
		edits = replaced(edits, was, beside)
	}
	return edits, nil
}

// conflictMark separates the path of a version that lost it from the branch's name.
const conflictMark = ".conflict-"

// changed is a name that one side changed, with its tree lines before and after. An empty line
// means absent.
type changed struct {
	name         string
	base, theirs tree
}

// changes returns the names that theirs changed, in the order of strings. A change that equals ours
// still counts: two counters that both went from 1 to 2 have counted two.
func changes(base, theirs tree) (out []changed, err error) {
	same := sameEnd(base, theirs)
	for len(base) != len(theirs) || len(base) > same {
		var b, t lead
		if base != "" {
			if b, err = base.lead(); err != nil {
				return nil, err
			}
			if strings.HasPrefix(string(theirs), string(base[:b.end])) {
				base, theirs = base[b.end:], theirs[b.end:]
				continue
			}
		}
		if theirs != "" {
			if t, err = theirs.lead(); err != nil {
				return nil, err
			}
		}
		if b.end > 0 && t.end > 0 { // of two names the first
			switch order := compareNames(b.name, t.name, b.folder, t.folder); {
			case order < 0:
				t = lead{}
			case order > 0:
				b = lead{}
			}
		}
		out = append(out,
			changed{name: cmp.Or(b.name, t.name), base: base[:b.end], theirs: theirs[:t.end]})
		base, theirs = base[b.end:], theirs[t.end:]
	}
	return byName(out), nil
}

// sameEnd returns a lower bound of the bytes that two trees share at their ends.
func sameEnd(a, b tree) (n int) {
	const step = 256
	for n+step <= min(len(a), len(b)) && a[len(a)-n-step:len(a)-n] == b[len(b)-n-step:len(b)-n] {
		n += step
	}
	return n
}

// byName sorts changes in the order of strings. It joins the two changes of a name that turned from
// file to folder, or back.
func byName(all []changed) []changed {
	order := func(a, b changed) int { return strings.Compare(a.name, b.name) }
	if !slices.IsSortedFunc(all, order) {
		slices.SortFunc(all, order)
	}
	out := all[:0]
	for _, c := range all {
		if n := len(out) - 1; n >= 0 && out[n].name == c.name {
			out[n].base, out[n].theirs = cmp.Or(out[n].base, c.base), cmp.Or(out[n].theirs, c.theirs)
			continue
		}
		out = append(out, c)
	}
	return out
}

// entry merges one name. now takes the name; beside is the other version if both are kept. Neither
// has its name yet.
func (m *merge) entry(p string, b, o, t entry) (now, beside entry, err error) {
	if o == b {
		m.result.Taken++
		return t, beside, nil
	}
	if m.types.typeOf(p) == pando.StateLog && (t.tree || t.id.IsZero()) && (o.tree || o.id.IsZero()) {
		m.result.Merged++
		now, err = m.logs(b, o, t)
		return now, beside, err
	}
	if t.tree && o.tree {
		var from pando.ObjectID
		if b.tree {
			from = b.id
		}
		now.tree = true
		now.id, err = m.folders(p+"/", from, o.id, t.id)
		return now, beside, err
	}
	m.result.Merged++
	if t.tree != o.tree && !t.id.IsZero() && !o.id.IsZero() {
		now, beside = m.keepBoth(p, o, t)
		return now, beside, nil
	}
	return m.leaves(p, b, o, t)
}

// logs appends to ours the lines that theirs appended since the base.
func (m *merge) logs(b, o, t entry) (entry, error) {
	if t.id.IsZero() {
		return o, nil // theirs deleted it without our new lines, so ours stays
	}
	from, err := m.endOf(b.id)
	if err != nil {
		return o, err
	}
	lines, err := m.since(t.id, from)
	if err != nil {
		return o, err
	}
	id, err := m.append(o.id, lines)
	return entry{tree: true, id: id}, err
}

// leaves merges two files by the type of their path.
func (m *merge) leaves(p string, b, o, t entry) (now, beside entry, err error) {
	switch typ := m.types.typeOf(p); {
	case typ == pando.StateCounter:
		now, err = m.contents(mergeCounter, b, o, t)
	case typ == pando.StateSet:
		now, err = m.contents(mergeSet, b, o, t)
	case typ == pando.StateOpaque:
		now, beside = m.keepBoth(p, o, t)
	case m.later:
		now = t
	default:
		now = o
	}
	return now, beside, err
}

// contents merges the contents of files.
func (m *merge) contents(
	with func(base, ours, theirs []byte) []byte, files ...entry,
) (entry, error) {
	var bodies [3][]byte
	for n, e := range files {
		if e.id.IsZero() || e.tree {
			continue
		}
		body, err := m.blob(e.id)
		if err != nil {
			return entry{}, err
		}
		bodies[n] = body
	}
	return entry{id: m.put(pando.BlobObject, with(bodies[0], bodies[1], bodies[2]))}, nil
}

// keepBoth keeps ours at the path and theirs beside it. A change wins over a deletion.
func (m *merge) keepBoth(p string, o, t entry) (now, beside entry) {
	switch {
	case t.id.IsZero() || t == o:
		return o, beside
	case o.id.IsZero():
		return t, beside
	}
	m.result.Conflicts = append(m.result.Conflicts, p)
	return o, t
}

// mergeCounter adds theirs' change since the base to ours.
func mergeCounter(base, ours, theirs []byte) []byte {
	sum := new(big.Int).Add(number(ours), number(theirs))
	return []byte(sum.Sub(sum, number(base)).String())
}

// numberBytesMax is the longest value that counts as a number.
const numberBytesMax = 1 << 10

// number reads a counter. Other text counts as zero.
func number(b []byte) *big.Int {
	if len(b) > numberBytesMax {
		return new(big.Int) // an older value, from before the path was a counter
	}
	n, ok := new(big.Int).SetString(strings.TrimSpace(string(b)), 10)
	if !ok {
		return new(big.Int)
	}
	return n
}

// mergeSet adds theirs' new members and removes those that theirs removed.
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

// describe returns the message of a merge commit.
func (m *merge) describe() string {
	s := fmt.Sprintf("merge %s: %d taken, %d merged", m.branch, m.result.Taken, m.result.Merged)
	if len(m.result.Conflicts) > 0 {
		s += "\n\nconflict: " + strings.Join(m.result.Conflicts, "\nconflict: ")
	}
	return s
}
