package bolt

import (
	"bytes"
	"encoding/binary"
	"slices"

	"pando.run/pando"
)

// A large folder with few changes is stored as a delta from its previous version:
//
//	'd', kind's first letter, base's id, length of the body
//	per splice: keep, drop, put, the put bytes
//
// All lengths are uvarints. Only recent objects are deltas: the object bucket stores every object
// whole.
const (
	deltaLetter = 'd'
	deltaHead   = 2 + len(pando.ObjectID{})
	deltasMax   = 16 // deltas in a chain down to a whole body
)

// delta returns the value that stores o as a delta from base. It returns nil for an object without
// a base, a small body, wrong splices, or a delta longer than half of the body.
func delta(o pando.Object, base []byte) []byte {
	if o.Base.IsZero() || len(o.Body) <= inlineBytesMax {
		return nil
	}
	size := deltaHead + binary.MaxVarintLen32
	for _, s := range o.Splices {
		size += s.Put + 6
	}
	out := append(append(make([]byte, 0, size), deltaLetter, letters[o.Kind]), o.Base[:]...)
	out = binary.AppendUvarint(out, uint64(len(o.Body)))
	body := o.Body
	for _, s := range o.Splices {
		if min(s.Keep, s.Drop, s.Put) < 0 || s.Keep+s.Drop > len(base) || s.Keep+s.Put > len(body) ||
			!bytes.Equal(body[:s.Keep], base[:s.Keep]) {
			return nil
		}
		for _, n := range []int{s.Keep, s.Drop, s.Put} {
			out = binary.AppendUvarint(out, uint64(n))
		}
		out = append(out, body[s.Keep:s.Keep+s.Put]...)
		body, base = body[s.Keep+s.Put:], base[s.Keep+s.Drop:]
	}
	if len(out) > len(o.Body)/2 || !bytes.Equal(body, base) {
		return nil
	}
	return out
}

// baseOf returns the base of a delta; ok is false for a whole value.
func baseOf(value []byte) (base pando.ObjectID, ok bool) {
	if len(value) < deltaHead || value[0] != deltaLetter {
		return base, false
	}
	return pando.ObjectID(value[2:deltaHead]), true
}

// splice builds the body of a delta from the body of its base.
func splice(value, base []byte) ([]byte, error) {
	rest := value[deltaHead:]
	number := func() int {
		n, bytes := binary.Uvarint(rest)
		if bytes <= 0 || n > 1<<40 {
			rest = nil
			return -1
		}
		rest = rest[bytes:]
		return int(n)
	}
	size := number()
	if size < 0 || size > len(value)+len(base) {
		return nil, errDamaged
	}
	body := make([]byte, 0, size)
	for len(rest) > 0 {
		keep, drop, put := number(), number(), number()
		if min(keep, drop, put) < 0 || keep+drop > len(base) || put > len(rest) {
			return nil, errDamaged
		}
		body = append(append(body, base[:keep]...), rest[:put]...)
		base, rest = base[keep+drop:], rest[put:]
	}
	if body = append(body, base...); len(body) != size {
		return nil, errDamaged
	}
	return slices.Clip(body), nil
}
