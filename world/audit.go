package world

import (
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/access"
)

// Audit is the deeds of the store, with the sums that bound them. It follows every change, so that
// no request scans all deeds to learn their size.
type Audit struct {
	Trim    Versioned[access.AuditTrim]
	newest  pando.StoreRevision // of a deed
	deeds   map[string]Versioned[access.Deed]
	bytes   int
	sources map[string]*source // by payer
}

// Payer returns who pays for the room of a deed: the host of its source, or the tenant of its token. A
// tenant with many tokens has no more room than one with a single token.
func Payer(d access.Deed) string {
	if of, _, ok := strings.Cut(d.Source, "/"); ok && strings.HasPrefix(of, "token ") {
		return of
	}
	return d.Source
}

// source is the deeds of one payer.
type source struct {
	ids   []string // in order
	bytes int
}

func newAudit() Audit {
	return Audit{deeds: map[string]Versioned[access.Deed]{}, sources: map[string]*source{}}
}

func (a *Audit) put(d access.Deed, at pando.StoreRevision) {
	if was, known := a.deeds[d.ID]; known {
		a.drop(was.V)
	}
	a.deeds[d.ID] = Versioned[access.Deed]{d, at}
	a.newest = max(a.newest, at)
	a.bytes += d.Bytes()
	of := a.sources[Payer(d)]
	if of == nil {
		of = &source{}
		a.sources[Payer(d)] = of
	}
	of.bytes += d.Bytes()
	if n, there := slices.BinarySearch(of.ids, d.ID); !there {
		of.ids = slices.Insert(of.ids, n, d.ID)
	}
}

func (a *Audit) drop(d access.Deed) {
	was, known := a.deeds[d.ID]
	if !known {
		return
	}
	delete(a.deeds, d.ID)
	a.bytes -= was.V.Bytes()
	of := a.sources[Payer(was.V)]
	of.bytes -= was.V.Bytes()
	if n, there := slices.BinarySearch(of.ids, d.ID); there {
		of.ids = slices.Delete(of.ids, n, n+1)
	}
	if len(of.ids) == 0 {
		delete(a.sources, Payer(was.V))
	}
}

// Len returns the number of deeds.
func (a *Audit) Len() int { return len(a.deeds) }

// Bytes returns the approximate size of all deeds in the store.
func (a *Audit) Bytes() int { return a.bytes }

// Newest returns the store revision of the newest deed.
func (a *Audit) Newest() pando.StoreRevision { return a.newest }

// Deeds returns the deeds that a query wants, oldest first, the newest q.Max of them.
func (a *Audit) Deeds(q access.DeedQuery) []access.Deed {
	out := []access.Deed{}
	if q.After >= a.newest {
		return out
	}
	for _, id := range slices.Sorted(maps.Keys(a.deeds)) {
		if d := a.deeds[id]; d.Modified > q.After && q.Wants(d.V) {
			out = append(out, d.V)
		}
	}
	if q.Max > 0 {
		out = out[max(0, len(out)-q.Max):]
	}
	return out
}

// trimShare is the part of the audit that goes at once, so that only one request in many trims.
const trimShare = 32

// trimMost bounds the deeds that one commit removes.
const trimMost = 1000

// Excess returns the deeds that must go: none while the audit is within its bounds. It takes the
// oldest of the payer with the most bytes, then of the next.
func (a *Audit) Excess(deeds, bytes int) (gone []access.Deed) {
	if len(a.deeds) <= deeds && a.bytes <= bytes {
		return nil
	}
	number, size := len(a.deeds), a.bytes
	taken, left := map[string]int{}, map[string]int{}
	for name, of := range a.sources {
		left[name] = of.bytes
	}
	names := slices.Sorted(maps.Keys(a.sources))
	for len(gone) < trimMost && (number > deeds-deeds/trimShare || size > bytes-bytes/trimShare) {
		most := ""
		for _, name := range names {
			if left[name] > left[most] {
				most = name
			}
		}
		if most == "" {
			break
		}
		d := a.deeds[a.sources[most].ids[taken[most]]].V
		gone = append(gone, d)
		taken[most]++
		left[most] -= d.Bytes()
		number--
		size -= d.Bytes()
	}
	return gone
}
