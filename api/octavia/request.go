package octavia

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"pando.run/pando"
)

// Request is the object in the body of a request. Each method reads one word and keeps the first
// error. Unknown words are errors, so a request never has less effect than it asks for.
type Request struct {
	kind  Kind
	words map[string]json.RawMessage
	err   error
}

// Read returns the object of a body.
func Read(kind Kind, body []byte) (*Request, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, fmt.Errorf("%w: the body: %w", pando.ErrInvalid, err)
	}
	one, ok := all[kind.String()]
	if !ok || len(all) != 1 {
		return nil, fmt.Errorf(`%w: the body: want {"%s": {…}}`, pando.ErrInvalid, kind)
	}
	return object(kind, one)
}

// ReadMembers returns the members in the body of a batch.
func ReadMembers(body []byte) ([]*Request, error) {
	var all struct{ Members []json.RawMessage }
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, fmt.Errorf("%w: the body: %w", pando.ErrInvalid, err)
	}
	if all.Members == nil {
		return nil, fmt.Errorf(`%w: the body: want {"members": […]}`, pando.ErrInvalid)
	}
	return objects(MemberKind, all.Members)
}

func object(kind Kind, raw json.RawMessage) (*Request, error) {
	r := &Request{kind: kind}
	if err := json.Unmarshal(raw, &r.words); err != nil || r.words == nil {
		return nil, fmt.Errorf("%w: %s: want an object", pando.ErrInvalid, kind)
	}
	return r, nil
}

func objects(kind Kind, all []json.RawMessage) (out []*Request, err error) {
	for _, raw := range all {
		r, err := object(kind, raw)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Text returns a word that is a text, and "" if the body lacks it. It leaves the word in the body.
func (r *Request) Text(word string) (s string) {
	if json.Unmarshal(r.words[word], &s) != nil {
		return ""
	}
	return s
}

func (r *Request) wrong(word, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s.%s: "+format, append([]any{pando.ErrInvalid, r.kind, word},
			args...)...)
	}
}

// take decodes a word and removes it. has is false if the body lacks it, or if it is null.
func take[T any](r *Request, word, want string, to *T) (has bool) {
	raw, ok := r.words[word]
	delete(r.words, word)
	if !ok || bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return false
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		r.wrong(word, "%.60s: want %s", raw, want)
		return false
	}
	*to = v
	return true
}

func (r *Request) text(word string, to *string) bool {
	has := take(r, word, "a text", to)
	if len(*to) > textMax || strings.ContainsRune(*to, 0) {
		r.wrong(word, "want at most %d bytes", textMax)
	}
	return has
}

func (r *Request) number(word string, to *int, least, most int) bool {
	has := take(r, word, "a number", to)
	if has && (*to < least || *to > most) {
		r.wrong(word, "%d: want %d to %d", *to, least, most)
	}
	return has
}

func (r *Request) port(word string, to *uint16) {
	n := int(*to)
	r.number(word, &n, 1, 65535)
	*to = uint16(n)
}

func (r *Request) address(word string, to *netip.Addr) {
	var s string
	if !take(r, word, "an address", &s) {
		return
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		r.wrong(word, "%.60q: want an address", s)
	}
	*to = a.Unmap()
}

// where returns the address and the port of a member, and leaves the request as it is.
func (r *Request) where() (a netip.Addr, port uint16) {
	look := &Request{kind: r.kind, words: maps.Clone(r.words)}
	look.address("address", &a)
	look.port("protocol_port", &port)
	return a, port
}

// one reads a word with a list of values.
func (r *Request) one(word string, to *string, want ...string) {
	before := *to
	if take(r, word, "a text", to) && !slices.Contains(want, *to) {
		if r.err == nil {
			r.err = fmt.Errorf("%w: %s.%s: %.60q: want %s", pando.ErrUnsupported, r.kind, word, *to,
				strings.Join(want, " or "))
		}
		*to = before
	}
}

func (r *Request) head(h *Head) {
	r.text("name", &h.Name)
	r.text("description", &h.Description)
	up := !h.Down
	take(r, "admin_state_up", "true or false", &up)
	h.Down = !up
	take(r, "tags", "a list of texts", &h.Tags)
	if len(h.Tags) > tagsMax {
		r.wrong("tags", "%d of at most %d", len(h.Tags), tagsMax)
	}
	for _, t := range h.Tags {
		if len(t) > textMax {
			r.wrong("tags", "want at most %d bytes each", textMax)
		}
	}
	r.drop("project_id", "tenant_id") // the door has read them
}

// drop removes words without an effect.
func (r *Request) drop(words ...string) {
	for _, w := range words {
		delete(r.words, w)
	}
}

// plain accepts words of functions that Pando lacks, with the values that ask for none of them.
func (r *Request) plain(words ...string) {
	for _, w := range words {
		switch strings.Join(strings.Fields(string(r.words[w])), "") {
		case "", "null", `""`, "[]", "{}", "false":
			delete(r.words, w)
		}
	}
}

// end returns the first error. An unknown word is one.
func (r *Request) end() error {
	if r.err == nil && len(r.words) > 0 {
		word := slices.Min(slices.Collect(maps.Keys(r.words)))
		r.err = fmt.Errorf("%w: %s.%s: a load balancer of Pando does not have it, or it cannot be "+
			"changed; leave it out", pando.ErrUnsupported, r.kind, word)
	}
	return r.err
}
