package pando

import "errors"

// What a caller may test for with errors.Is. Each wraps into a sentence that says what was being done to which object.
var (
	ErrInvalid     = errors.New("invalid")                      // the request itself is wrong
	ErrNotFound    = errors.New("not found")                    // no such object
	ErrExists      = errors.New("exists already")               // the name is taken
	ErrConflict    = errors.New("conflict")                     // the object changed since it was read, or a request is pending
	ErrRefused     = errors.New("refused")                      // a budget, a bound or a rule says no; the text says which
	ErrForbidden   = errors.New("forbidden")                    // the asker is not who may ask
	ErrTooLarge    = errors.New("too large")                    // a body or a record is over its limit
	ErrLost        = errors.New("lost")                         // what was written before is not known any more; nothing new was done
	ErrFenced      = errors.New("fenced")                       // the writer lost its leadership or its host epoch
	ErrStoreFull   = errors.New("the store is out of space")    // writes are refused until there is room; traffic goes on
	ErrUnavailable = errors.New("the store is out of reach")    // try again; nothing is known to be written
	ErrCompacted   = errors.New("history is compacted")         // a watch must begin anew with a snapshot
	ErrNoRoom      = errors.New("no host has room")             // placement found no host
	ErrNotReady    = errors.New("not ready")                    // a condition did not hold by its deadline
	ErrUnsupported = errors.New("not supported on this kernel") // a feature is missing; the text names it and the minimum version
)
