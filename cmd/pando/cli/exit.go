package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"pando.run/pando"
)

// UsageError is an error of the command line.
type UsageError struct{ error }

// Usagef returns an error of the command line.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Code is an error without a message of its own: the command, or its child, has printed the reason.
// It is the exit code of the process.
type Code int

// Error implements error.
func (c Code) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Exit returns the error that ends the process with a code.
func Exit(code int) error {
	if code == 0 {
		return nil
	}
	return Code(code)
}

// Interrupted is the exit code of a command that a signal ended.
const Interrupted = 130

// Codes maps errors to exit codes, which scripts can test.
var Codes = []struct {
	Code int
	Name string
	errs []error
}{
	{3, "invalid input", []error{pando.ErrInvalid, pando.ErrTooLarge, pando.ErrKeyReused}},
	{4, "not found", []error{pando.ErrNotFound, fs.ErrNotExist}},
	{5, "refused", []error{pando.ErrRefused, pando.ErrNoRoom}},
	{6, "conflict", []error{
		pando.ErrConflict, pando.ErrExists, pando.ErrFenced, pando.ErrCompacted, pando.ErrLost,
	}},
	{7, "not ready by the deadline", []error{pando.ErrNotReady, context.DeadlineExceeded}},
	{8, "pando is not running", []error{pando.ErrUnavailable}},
	{9, "the store is full", []error{pando.ErrStoreFull}},
	{10, "not allowed", []error{pando.ErrForbidden, fs.ErrPermission}},
	{11, "not supported here", []error{pando.ErrUnsupported}},
	{12, "frozen", []error{pando.ErrFrozen}},
	{unreachable, "a host or a registry is out of reach", []error{
		pando.ErrUnreachable, pando.ErrBusy,
	}},
	{Interrupted, "interrupted", []error{context.Canceled}},
}

// unreachable is the exit code where something beside Pando's own server gives no answer.
const unreachable = 13

// CodeOf returns the exit code of a command that ended with an error or nil.
func CodeOf(err error) int {
	var code Code
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, new(UsageError)):
		return 2
	}
	beside := errors.Is(err, pando.ErrUnreachable) // it is an ErrUnavailable as well
	for _, k := range Codes {
		for _, sentinel := range k.errs {
			if errors.Is(err, sentinel) && !(beside && sentinel == pando.ErrUnavailable) {
				return k.Code
			}
		}
	}
	return 1
}

// Meanings returns the exit codes in words, for the help.
func Meanings() string {
	s := "Exit codes: 0 done, 1 internal error, 2 usage"
	for n, k := range Codes {
		sep := ", "
		if n == 2 || n == 6 || n == 10 {
			sep = ",\n"
		}
		s += fmt.Sprintf("%s%d %s", sep, k.Code, k.Name)
	}
	return s + "."
}
