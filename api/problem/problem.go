// Package problem is the one table of errors on the wire: each sentinel of the root with its code
// and its HTTP status. Operators, instances and hosts all receive errors by this table.
//
// It never writes an answer: its callers do.
package problem

import (
	"errors"
	"net/http"
	"strings"

	"pando.run/pando"
)

// Kind is a sentinel on the wire.
type Kind struct {
	Err    error  // the sentinel
	Code   string // stable, for programs
	Status int    // of HTTP
}

// Kinds lists all sentinels. An error that wraps several of them has the first of this list.
var Kinds = []Kind{
	{pando.ErrInvalid, "invalid", http.StatusBadRequest},
	{pando.ErrForbidden, "forbidden", http.StatusForbidden},
	{pando.ErrNotFound, "not_found", http.StatusNotFound},
	{pando.ErrExists, "exists", http.StatusConflict},
	{pando.ErrConflict, "conflict", http.StatusConflict},
	{pando.ErrRefused, "refused", http.StatusConflict},
	{pando.ErrKeyReused, "key_reused", http.StatusUnprocessableEntity},
	{pando.ErrTooLarge, "too_large", http.StatusRequestEntityTooLarge},
	{pando.ErrStoreFull, "store_full", http.StatusInsufficientStorage},
	{pando.ErrUnreachable, "unreachable", http.StatusBadGateway},
	{pando.ErrUnavailable, "unavailable", http.StatusServiceUnavailable},
	{pando.ErrNotReady, "not_ready", http.StatusGatewayTimeout},
	{pando.ErrBusy, "busy", http.StatusServiceUnavailable},
	{pando.ErrNoRoom, "no_room", http.StatusConflict},
	{pando.ErrLost, "lost", http.StatusConflict},
	{pando.ErrFenced, "fenced", http.StatusConflict},
	{pando.ErrCompacted, "compacted", http.StatusGone},
	{pando.ErrUnsupported, "unsupported", http.StatusNotImplemented},
	{pando.ErrFrozen, "frozen", http.StatusConflict},
}

// Of returns the kind of an error. An error without a sentinel has none.
func Of(err error) (Kind, bool) {
	for _, k := range Kinds {
		if errors.Is(err, k.Err) {
			return k, true
		}
	}
	return Kind{}, false
}

// BetweenHosts returns the spelling of a code between hosts. Builds of layout 1 read codes with
// hyphens only, and a cluster may have such hosts.
func BetweenHosts(code string) string { return strings.ReplaceAll(code, "_", "-") }

// Error returns an error that arrived with a code. It has the other side's text, and this side's
// sentinel if the code is known.
func Error(code, detail string) error {
	code = strings.ReplaceAll(code, "-", "_")
	for _, k := range Kinds {
		if k.Code == code {
			return Remote(detail, k.Err)
		}
	}
	return errors.New(detail)
}

// Remote returns an error with a text of the other side and a sentinel of this side.
func Remote(detail string, sentinel error) error { return remote{detail, sentinel} }

type remote struct {
	detail   string
	sentinel error
}

func (r remote) Error() string { return r.detail }
func (r remote) Unwrap() error { return r.sentinel }
