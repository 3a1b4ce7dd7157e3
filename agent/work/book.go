// Package work counts the work of the instances of one host for the bills of their tenants.
//
// A Book is the memory of the count: the newest reading of each instance, the open work by tenant
// and hour, and one sealed batch on its way to the leader. It is saved before a batch leaves the
// host, so a batch has the same content after a kill. It never reads a clock, a cgroup or a link: a
// Reader does, and keeps the book.
package work

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
)

// linesMax bounds the open lines of a host that no leader has asked for long. Beyond it, the work
// of the oldest hour counts for the next hour.
const linesMax = 4096

// Reading is the totals of an instance since its start.
type Reading struct {
	Tenant     pando.Tenant `json:"tenant"`
	At         time.Time    `json:"at"`
	CPUSeconds float64      `json:"cpu_seconds"`
	In         uint64       `json:"in"`
	Out        uint64       `json:"out"`
}

// line names the work of a tenant in one hour.
type line struct {
	tenant pando.Tenant
	hour   int64 // its start, in seconds since 1970
}

// Book is the count of one host. Its methods are not safe for several goroutines.
type Book struct {
	journal string
	number  uint64 // of the sealed batch, or of the last one
	sealed  []pando.WorkLine
	open    map[line]pando.Work
	last    map[pando.InstanceID]Reading
	looked  time.Time // at all instances, for the last time
	// fresh: no former book existed. Instances that run already begin with their present totals.
	fresh bool
}

// New returns an empty book. A journal is the name of its life.
func New(journal string) *Book {
	return &Book{journal: journal, open: map[line]pando.Work{},
		last: map[pando.InstanceID]Reading{}, fresh: true}
}

// stored is the saved form of a book.
type stored struct {
	Journal string                       `json:"journal"`
	Number  uint64                       `json:"number"`
	Sealed  []pando.WorkLine             `json:"sealed"`
	Open    []pando.WorkLine             `json:"open"`
	Last    map[pando.InstanceID]Reading `json:"last"`
	Looked  time.Time                    `json:"looked"`
}

// Parse reads a saved book.
func Parse(b []byte) (*Book, error) {
	var s stored
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read the work of this host: %w", err)
	}
	if s.Journal == "" {
		return nil, fmt.Errorf("read the work of this host: %w: no journal", pando.ErrInvalid)
	}
	out := New(s.Journal)
	out.number, out.sealed, out.looked, out.fresh = s.Number, s.Sealed, s.Looked, false
	for _, l := range s.Open {
		out.open[lineOf(l.Tenant, l.Hour)] = l.Work
	}
	maps.Copy(out.last, s.Last)
	return out, nil
}

// Bytes returns the saved form.
func (b *Book) Bytes() ([]byte, error) {
	return json.Marshal(stored{b.journal, b.number, b.sealed, b.lines(len(b.open)), b.last,
		b.looked})
}

func lineOf(t pando.Tenant, at time.Time) line { return line{t, at.Truncate(time.Hour).Unix()} }

// Note adds the work of an instance since its former reading. The first reading counts from the
// last look at the host, or from born if that is later: it has started or arrived since.
//
// A smaller total was not read. The former one stays, so that nothing counts twice.
func (b *Book) Note(i pando.InstanceID, born time.Time, now Reading) {
	was, known := b.last[i]
	if known {
		now.CPUSeconds = max(was.CPUSeconds, now.CPUSeconds)
		now.In, now.Out = max(was.In, now.In), max(was.Out, now.Out)
	}
	b.last[i] = now
	if !known {
		if b.fresh {
			return
		}
		was.At = born
		if b.looked.After(born) {
			was.At = b.looked
		}
	}
	b.spread(now.Tenant, was.At, now.At)
	b.add(lineOf(now.Tenant, now.At), pando.Work{CPUSeconds: now.CPUSeconds - was.CPUSeconds,
		BytesIn: now.In - was.In, BytesOut: now.Out - was.Out})
}

// spread adds the seconds of an instance to each hour from one moment to another. A leap of the
// clock by more than a day counts for one day.
func (b *Book) spread(t pando.Tenant, from, to time.Time) {
	if to.Sub(from) > 24*time.Hour {
		from = to.Add(-24 * time.Hour)
	}
	for from.Before(to) {
		next := from.Truncate(time.Hour).Add(time.Hour)
		if next.After(to) {
			next = to
		}
		b.add(lineOf(t, from), pando.Work{InstanceSeconds: next.Sub(from).Seconds()})
		from = next
	}
}

func (b *Book) add(at line, w pando.Work) {
	if w == (pando.Work{}) {
		return
	}
	b.open[at] = b.open[at].Add(w)
	if len(b.open) > linesMax {
		b.fold()
	}
}

// fold moves the work of the oldest hour to the next one.
func (b *Book) fold() {
	oldest := at(slices.MinFunc(slices.Collect(maps.Keys(b.open)), byHour).hour)
	for k, w := range b.open {
		if next := lineOf(k.tenant, oldest.Add(time.Hour)); k.hour == oldest.Unix() {
			delete(b.open, k)
			b.open[next] = b.open[next].Add(w)
		}
	}
}

func at(hour int64) time.Time { return time.Unix(hour, 0).UTC() }

func byHour(x, y line) int {
	return cmp.Or(cmp.Compare(x.hour, y.hour), cmp.Compare(x.tenant, y.tenant))
}

// End drops the reading of an instance that is gone. Its work stays.
func (b *Book) End(i pando.InstanceID) { delete(b.last, i) }

// Looked ends a look at all instances of a host. An instance without a reading began later.
func (b *Book) Looked(at time.Time) { b.looked, b.fresh = at, false }

// lines returns the oldest open lines.
func (b *Book) lines(most int) []pando.WorkLine {
	out := []pando.WorkLine{}
	for _, k := range slices.SortedFunc(maps.Keys(b.open), byHour) {
		if len(out) == most {
			break
		}
		out = append(out, pando.WorkLine{Tenant: k.tenant, Hour: at(k.hour), Work: b.open[k]})
	}
	return out
}

// Seal returns the batch after a mark. changed reports whether the book must be saved before the
// batch may leave the host.
//
// A mark of the sealed batch, or of a later one, drops the batch. A restored store may have an
// older mark. Then the sealed batch comes next, and the batches in between are lost with the store.
func (b *Book) Seal(after pando.WorkMark) (batch pando.WorkBatch, changed bool) {
	if after.Journal == b.journal && after.Number >= b.number {
		changed = len(b.sealed) > 0 || after.Number > b.number
		b.number, b.sealed = after.Number, nil
	}
	if len(b.sealed) == 0 {
		b.sealed = b.lines(pando.WorkLinesMax)
		for _, l := range b.sealed {
			delete(b.open, lineOf(l.Tenant, l.Hour))
		}
		if len(b.sealed) > 0 {
			b.number++
			changed = true
		}
	}
	return pando.WorkBatch{Journal: b.journal, Number: b.number, Lines: b.sealed,
		More: len(b.open) > 0}, changed
}
