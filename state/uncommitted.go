package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
)

// uncommitted holds the writes of a branch since its last commit. They are in memory and in a
// journal. The lock of the branch guards them.
type uncommitted struct {
	author  pando.InstanceID
	types   types
	pending map[string]*change
	held    int // bytes of pending

	journal pando.Journal // of pending; nil: no journal
	noted   int           // bytes in the journal
	kept    int           // bytes in the journal after its last rewrite
	lost    error         // why an earlier write is gone
	// mark is a commit that the journal still names, because the journal could not be rewritten.
	// recall drops the writes before it if the commit exists. A ref keeps the commit from a trim.
	mark   pando.ObjectID
	unmark func() // called when the journal no longer names mark
}

// change is the writes to one path since the last commit.
type change struct {
	set   bool // value replaces the path; else the delta below applies to it
	gone  bool // deletes the path
	value []byte
	add   []byte // a counter's or a log's delta
	plus  map[string]bool
	minus map[string]bool
}

func (u *uncommitted) put(p string, value []byte) error {
	if err := u.checkValue(p, value); err != nil {
		return err
	}
	u.pending[p] = &change{set: true, value: bytes.Clone(value)}
	return nil
}

func (u *uncommitted) checkValue(p string, value []byte) error {
	if err := CheckPath(p); err != nil {
		return err
	}
	if len(value) > ValueBytesMax {
		return fmt.Errorf("state path %q: %w: %d bytes, at most %d",
			p, pando.ErrTooLarge, len(value), ValueBytesMax)
	}
	if u.types.typeOf(p) == pando.StateCounter {
		return checkNumber(p, value)
	}
	return nil
}

// CounterDigitsMax limits the digits of one write to a counter. Sums may be longer.
const CounterDigitsMax = 64

func checkNumber(p string, value []byte) error {
	if n := len(bytes.TrimLeft(bytes.TrimSpace(value), "+-")); n > CounterDigitsMax {
		return fmt.Errorf("%w: state path %q is a counter: want at most %d digits, got %d",
			pando.ErrInvalid, p, CounterDigitsMax, n)
	}
	s := strings.TrimSpace(string(value))
	if number(value).String() != strings.TrimPrefix(s, "+") {
		return fmt.Errorf("%w: state path %q is a counter: want an integer, got %.40q",
			pando.ErrInvalid, p, s)
	}
	return nil
}

func (u *uncommitted) remove(p string) error {
	if err := CheckPath(p); err != nil {
		return err
	}
	u.pending[p] = &change{set: true, gone: true}
	return nil
}

func (u *uncommitted) patch(p string, delta []byte) error {
	if err := u.checkValue(p, nil); err != nil && u.types.typeOf(p) != pando.StateCounter {
		return err
	}
	if err := CheckPath(p); err != nil {
		return err
	}
	typ := u.types.typeOf(p)
	c := u.pending[p]
	if c == nil {
		c = &change{}
	}
	switch typ {
	case pando.StateCounter:
		if err := checkNumber(p, delta); err != nil {
			return err
		}
		c.add = []byte(added(c.add, delta))
	case pando.StateLog:
		c.add = append(c.add, delta...)
		if len(delta) > 0 && delta[len(delta)-1] != '\n' {
			c.add = append(c.add, '\n')
		}
	case pando.StateSet:
		if err := c.patchSet(p, delta); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: state path %q is %s: put its whole value instead of a delta",
			pando.ErrInvalid, p, typ)
	}
	u.pending[p] = c
	return nil
}

func added(a, b []byte) string {
	sum := number(a)
	return sum.Add(sum, number(b)).String()
}

func (c *change) patchSet(p string, delta []byte) error {
	if c.plus == nil {
		c.plus, c.minus = map[string]bool{}, map[string]bool{}
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(delta), "\n"), "\n") {
		switch {
		case len(line) > 1 && line[0] == '+':
			c.plus[line[1:]] = true
			delete(c.minus, line[1:])
		case len(line) > 1 && line[0] == '-':
			c.minus[line[1:]] = true
			delete(c.plus, line[1:])
		default:
			return fmt.Errorf("%w: state path %q is a set: "+
				"want lines of +member and -member, got %.40q", pando.ErrInvalid, p, line)
		}
	}
	return nil
}

// write adds a change to the pending ones. The caller holds the lock.
func (u *uncommitted) write(c pando.StateChange) error {
	seen := map[string]bool{}
	once := func(p string) error {
		if seen[p] {
			return fmt.Errorf("%w: state path %q is in one change twice", pando.ErrInvalid, p)
		}
		seen[p] = true
		return nil
	}
	for _, p := range c.Delete {
		if err := errors.Join(once(p), u.remove(p)); err != nil {
			return err
		}
	}
	for p, value := range c.Put {
		if err := errors.Join(once(p), u.put(p, []byte(value))); err != nil {
			return err
		}
	}
	for p, delta := range c.Patch {
		if err := errors.Join(once(p), u.patch(p, []byte(delta))); err != nil {
			return err
		}
	}
	return nil
}

// clone returns a copy of the pending changes.
func (u *uncommitted) clone() map[string]*change {
	out := map[string]*change{}
	for p, c := range u.pending {
		out[p] = c.clone()
	}
	return out
}

// taken clears the pending changes: the commit head has them.
func (u *uncommitted) taken(head pando.ObjectID) {
	u.pending, u.held = map[string]*change{}, 0
	if !u.rewrite() {
		u.mark = head
	}
}

func (c *change) clone() *change {
	if c == nil {
		return nil
	}
	d := *c
	// An append to one copy is invisible in the other. Values are replaced, never changed.
	d.add = slices.Clip(c.add)
	d.plus, d.minus = maps.Clone(c.plus), maps.Clone(c.minus)
	return &d
}
