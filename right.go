package pando

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Right is a permission for the operators of one host. Every member may read, scale and remove
// services, and removes no state. The operators of a server's host have all rights. A new member has none, so that a
// captured host starts no program on another.
type Right string

const (
	// RightDeploy allows changes of specs, rollouts, images, secrets and volumes, and the removal of
	// states. Its owner sees
	// the values of environments, because a deploy returns the spec.
	RightDeploy Right = "deploy"
	// RightExec allows commands inside instances, and runs.
	RightExec Right = "exec"
	// RightAdmit allows tokens for new hosts, and the end of a membership.
	RightAdmit Right = "admit"
)

// Rights lists every right.
var Rights = []Right{RightDeploy, RightExec, RightAdmit}

// ParseRight returns the right of a word.
func ParseRight(word string) (Right, error) {
	if r := Right(word); slices.Contains(Rights, r) {
		return r, nil
	}
	return "", fmt.Errorf("%w: the right %q: want deploy, exec or admit", ErrInvalid, word)
}

// Granting is the newest change of one right of a host.
type Granting struct {
	May bool      `json:"may"`
	By  string    `json:"by"` // the operator
	At  time.Time `json:"at"`
}

// Has reports whether the operators of a member have a right.
func (m Member) Has(r Right) bool { return m.Server || m.Rights[r].May }

// Grant returns the member after a change of a right. changed is false if it was so already.
func (m Member) Grant(r Right, g Granting) (next Member, changed bool) {
	if m.Rights[r].May == g.May {
		return m, false
	}
	m.Rights = maps.Clone(m.Rights)
	if m.Rights == nil {
		m.Rights = map[Right]Granting{}
	}
	m.Rights[r] = g
	return m, true
}

// RightsText returns the rights of a host in words, in a fixed order, or "-".
func (h HostStatus) RightsText() string {
	if h.Server {
		return "all"
	}
	var out []string
	for _, r := range Rights {
		if h.Rights[r].May {
			out = append(out, string(r))
		}
	}
	if out == nil {
		return "-"
	}
	return strings.Join(out, ",")
}

// Lacks returns the error of a request that needs a right.
func (m Member) Lacks(r Right) error {
	return fmt.Errorf("%w: the operators of host %s may not %s; `pando hosts allow %s %s` on a "+
		"server's host allows it (`pando hosts` shows the servers)", ErrForbidden, m.Name, r, m.Name, r)
}

// RightOperators changes the rights of hosts. Operators of a server's host alone may.
type RightOperators interface {
	// SetRight gives a right to the operators of a host, or takes it away. ErrNotFound: no such
	// member. ErrRefused: the host has a server, so it has all rights.
	SetRight(ctx context.Context, h HostName, r Right, may bool, by Asker) error
}

// Invitation is a token with the address at which it admits hosts.
type Invitation struct {
	Token string    `json:"token"`
	Join  string    `json:"join"` // address:port of the server
	Until time.Time `json:"until"`
	Uses  int       `json:"uses"`
}

// Inviter makes invitations. A server that listens for other hosts implements it.
type Inviter interface {
	// Invite returns a token that admits a number of hosts for a time.
	Invite(ctx context.Context, uses int, keep time.Duration, by Asker) (Invitation, error)
}
