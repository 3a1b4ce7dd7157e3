package pando

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Seat is one instance in the record of its service.
type Seat struct {
	Instance InstanceID
	Host     int // its place in Hosts
	// Phase is placed until the instance is ready, and draining from the end of its rotation. The
	// steps in between concern its own host only.
	Phase    Phase
	Revision int
	Weight   int
	Since    time.Time // of the phase, to the millisecond; zero if it leaves
	// At is the number of its address in the range of its host, while it takes flows. 0: unknown.
	At int
}

// Addresses returns the addresses of a seat on a host with a slot. ok is false if they are unknown.
func (s Seat) Addresses(slot int) (v4, v6 netip.Addr, ok bool) {
	if s.At <= 0 || s.At >= 1<<12 {
		return v4, v6, false
	}
	range4, range6 := InstanceRange(slot)
	four, six := range4.Addr().As4(), range6.Addr().As16()
	four[2], four[3] = four[2]|byte(s.At>>8), byte(s.At)
	copy(six[12:], four[:])
	return netip.AddrFrom4(four), netip.AddrFrom16(six), true
}

// MarshalJSON writes a seat as an array, because a service may have thousands.
func (s Seat) MarshalJSON() ([]byte, error) {
	since := int64(0)
	if !s.Since.IsZero() {
		since = s.Since.UnixMilli()
	}
	if !plain(string(s.Instance)) || !plain(string(s.Phase)) {
		return json.Marshal([]any{s.Instance, s.Host, s.Phase, s.Revision, s.Weight, since, s.At})
	}
	b := make([]byte, 0, len(s.Instance)+len(s.Phase)+48)
	b = append(append(append(b, `["`...), s.Instance...), `",`...)
	b = append(strconv.AppendInt(b, int64(s.Host), 10), `,"`...)
	b = append(append(b, s.Phase...), `",`...)
	b = append(strconv.AppendInt(b, int64(s.Revision), 10), ',')
	b = append(strconv.AppendInt(b, int64(s.Weight), 10), ',')
	b = strconv.AppendInt(b, since, 10)
	if s.At > 0 {
		b = strconv.AppendInt(append(b, ','), int64(s.At), 10)
	}
	return append(b, ']'), nil
}

// UnmarshalJSON reads the array of MarshalJSON. It ignores later fields of a newer build.
func (s *Seat) UnmarshalJSON(b []byte) error {
	if s.read(b) {
		return nil
	}
	var since int64
	fields := []any{&s.Instance, &s.Host, &s.Phase, &s.Revision, &s.Weight, &since}
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	if len(raw) < len(fields) {
		return fmt.Errorf("%w: a seat has %d fields, want %d", ErrInvalid, len(raw), len(fields))
	}
	const older = 6 // fields of a build without At
	if fields = append(fields, &s.At); len(raw) == older {
		fields = fields[:older]
	}
	for n, f := range fields {
		if err := json.Unmarshal(raw[n], f); err != nil {
			return err
		}
	}
	s.at(since)
	return nil
}

// seatsOpening opens the seats in the JSON of endpoints. The text of a string never contains it,
// because the quotes in a string are escaped.
const seatsOpening = `"seats":[`

// ReadWritten reads endpoints in the very form of json.Marshal, with one pass over their seats. It
// reports whether they are in that form. Every host reads the endpoints of every service at each
// change, and a service may have thousands of seats.
func (e *Endpoints) ReadWritten(b []byte) bool {
	at := bytes.Index(b, []byte(seatsOpening))
	if at < 0 {
		return false
	}
	text := seatText{b: b, at: at + len(seatsOpening)}
	seats := make([]Seat, 0, 1+bytes.Count(b[at:], []byte("],[")))
	for more := true; more; more = text.is(',') {
		var s Seat
		if !text.seat(&s) {
			return false
		}
		seats = append(seats, s)
	}
	if !text.is(']') {
		return false
	}
	var rest Endpoints
	empty := slices.Concat(b[:at], []byte(`"seats":[]`), b[text.at:])
	if json.Unmarshal(empty, &rest) != nil || rest.Seats == nil || len(rest.Seats) > 0 {
		return false // these seats are a part of another field
	}
	rest.Seats = seats
	*e = rest
	return true
}

// seatText reads seats in the very form of MarshalJSON, from a place on.
type seatText struct {
	b  []byte
	at int
}

// read reads a seat in the very form of MarshalJSON, and reports whether it is in that form.
func (s *Seat) read(b []byte) bool {
	text := seatText{b: b}
	return text.seat(s) && text.at == len(b)
}

func (t *seatText) seat(s *Seat) bool {
	var since int64
	var v Seat
	ok := t.is('[') && t.word((*string)(&v.Instance)) && t.is(',') && t.count(&v.Host) &&
		t.is(',') && t.phase(&v.Phase) && t.is(',') && t.count(&v.Revision) && t.is(',') &&
		t.count(&v.Weight) && t.is(',') && t.number(&since)
	if ok && t.is(',') { // a build without At writes none
		ok = t.count(&v.At)
	}
	if !ok || !t.is(']') {
		return false
	}
	v.at(since)
	*s = v
	return true
}

// is reports whether the next byte is c, and passes it.
func (t *seatText) is(c byte) bool {
	if t.at >= len(t.b) || t.b[t.at] != c {
		return false
	}
	t.at++
	return true
}

// quoted returns the text of a plain string.
func (t *seatText) quoted() ([]byte, bool) {
	if !t.is('"') {
		return nil, false
	}
	from := t.at
	for ; t.at < len(t.b); t.at++ {
		switch c := t.b[t.at]; {
		case c == '"':
			t.at++
			return t.b[from : t.at-1], true
		case !plainByte(c):
			return nil, false
		}
	}
	return nil, false
}

func (t *seatText) word(to *string) bool {
	w, ok := t.quoted()
	*to = string(w)
	return ok
}

// phase reads a phase. A known one takes no memory.
func (t *seatText) phase(to *Phase) bool {
	w, ok := t.quoted()
	for _, p := range seatPhases {
		if string(w) == string(p) {
			*to = p
			return ok
		}
	}
	*to = Phase(w)
	return ok
}

// seatPhases are the phases of seats, the most frequent first.
var seatPhases = []Phase{PhaseInRotation, PhasePlaced, PhaseReady, PhaseDraining, PhaseWarm}

func (t *seatText) count(to *int) bool {
	var n int64
	ok := t.number(&n)
	*to = int(n)
	return ok
}

// digitsMax bounds a number to the range of its type.
const digitsMax = 18

func (t *seatText) number(to *int64) bool {
	negative := t.is('-')
	from, n := t.at, int64(0)
	for ; t.at < len(t.b) && '0' <= t.b[t.at] && t.b[t.at] <= '9'; t.at++ {
		n = 10*n + int64(t.b[t.at]-'0')
		if t.at-from >= digitsMax {
			return false
		}
	}
	if t.at == from || t.b[from] == '0' && t.at > from+1 {
		return false
	}
	if *to = n; negative {
		*to = -n
	}
	return true
}

func (s *Seat) at(milliseconds int64) {
	if s.Since = (time.Time{}); milliseconds != 0 {
		s.Since = time.UnixMilli(milliseconds).UTC()
	}
}

// plain reports whether a text stands in JSON as it is.
func plain(s string) bool {
	for n := range len(s) {
		if !plainByte(s[n]) {
			return false
		}
	}
	return true
}

func plainByte(c byte) bool {
	return c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}
