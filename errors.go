package pando

import "errors"

// Errors that a caller may test for with errors.Is. Each is wrapped into a sentence that names the
// action and the object.
var (
	// The request itself is wrong.
	ErrInvalid = errors.New("invalid")
	// The object does not exist.
	ErrNotFound = errors.New("not found")
	// The name is taken.
	ErrExists = errors.New("exists already")
	// The object changed since it was read, or a request is pending.
	ErrConflict = errors.New("conflict")
	// A budget, a bound or a rule forbids the request; the text names it.
	ErrRefused = errors.New("refused")
	// This asker may not ask that.
	ErrForbidden = errors.New("forbidden")
	// A body or a record is over its limit.
	ErrTooLarge = errors.New("too large")
	// The store lost an earlier write; nothing new was written.
	ErrLost = errors.New("lost")
	// The writer lost its leadership or its host epoch.
	ErrFenced = errors.New("fenced")
	// Writes fail until there is room; traffic still flows.
	ErrStoreFull = errors.New("the store is out of space")
	// Try again: the write may or may not have happened.
	ErrUnavailable = errors.New("the store is out of reach")
	// A watch must start again with a snapshot.
	ErrCompacted = errors.New("history is compacted")
	// Placement found no host.
	ErrNoRoom = errors.New("no host has room")
	// A condition did not hold by its deadline.
	ErrNotReady = errors.New("not ready")
	// This kernel lacks a feature; the text names it and the minimum version.
	ErrUnsupported = errors.New("not supported on this kernel")
)
