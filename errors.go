package pando

import "errors"

// Errors that a caller may test for with errors.Is. Each is wrapped into a sentence that names the
// action and the object.
var (
	ErrInvalid   = errors.New("invalid")        // the request itself is wrong
	ErrNotFound  = errors.New("not found")      // no such object
	ErrExists    = errors.New("exists already") // the name is taken
	ErrConflict  = errors.New("conflict")       // the object changed, or another request is pending
	ErrRefused   = errors.New("refused")        // a budget, a bound or a rule forbids it; see the text
	ErrForbidden = errors.New("forbidden")      // this asker may not ask that
	ErrTooLarge  = errors.New("too large")      // a body or a record is over its limit

	ErrLost        = errors.New("lost")                      // an earlier write is gone; nothing done
	ErrFenced      = errors.New("fenced")                    // the writer lost its leadership or epoch
	ErrStoreFull   = errors.New("the store is out of space") // no room for writes; traffic still flows
	ErrUnavailable = errors.New("the store is out of reach") // try again: the write may have happened
	ErrCompacted   = errors.New("history is compacted")      // start the watch again with a snapshot

	ErrNoRoom   = errors.New("no host has room") // no host for an instance, or no slot for a host
	ErrNotReady = errors.New("not ready")        // a condition did not hold by its deadline

	ErrUnsupported = errors.New("not supported on this kernel") // needs the kernel that the text names
)
