package pando

import (
	"fmt"
	"strings"
)

// Bounds of the sessions on one host.
const (
	SessionsMax         = 32 // of all
	SessionsOfTenantMax = 8  // of the tokens of one tenant
	SessionsReserve     = 8  // of SessionsMax, for operators alone
)

// SessionSpec describes a command that an operator runs inside an instance, with the rights of its
// program, or a connection to a port of the instance.
type SessionSpec struct {
	// Port is a TCP port of the instance to which the session is a connection. 0: it is a command.
	Port     uint16   `json:"port,omitempty"`
	Command  []string `json:"command,omitempty"`
	Terminal bool     `json:"terminal,omitempty"` // it has a terminal, else three pipes
	Rows     uint16   `json:"rows,omitempty"`     // of the terminal
	Columns  uint16   `json:"columns,omitempty"`
	Term     string   `json:"term,omitempty"` // the kind of the terminal, such as xterm
}

// Check returns nil if the command can be run, else the reason.
func (s SessionSpec) Check() error {
	if s.Port != 0 {
		if len(s.Command) > 0 || s.Terminal || s.Term != "" {
			return fmt.Errorf("%w: the session has a port and a command: leave one out", ErrInvalid)
		}
		return nil
	}
	size := 0
	for _, w := range s.Command {
		size += len(w)
		if strings.ContainsRune(w, 0) {
			return fmt.Errorf("%w: a word of the command has a NUL byte", ErrInvalid)
		}
	}
	switch {
	case len(s.Command) == 0 || s.Command[0] == "":
		return fmt.Errorf("%w: the session has no command", ErrInvalid)
	case size > 128<<10 || len(s.Command) > 10_000:
		return fmt.Errorf("%w: the command has %d words and %d bytes: at most 10,000 and 131,072",
			ErrTooLarge, len(s.Command), size)
	case len(s.Term) > 100 || strings.ContainsAny(s.Term, "\x00\n="):
		return fmt.Errorf("%w: %.40q is no kind of a terminal", ErrInvalid, s.Term)
	}
	return nil
}
