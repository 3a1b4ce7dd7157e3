package pando

import (
	"context"
	"errors"
	"strconv"
	"strings"
)

// State is this instance's branch of the service's state. This instance sees a write at once. The
// write survives the instance after Commit, and its peers see it after Push and their Pull. The
// spec sets how each path merges.
type State struct{ self *Self }

// State returns this instance's branch of the service's state.
func (s *Self) State() State { return State{s} }

// Merge is the result of a Pull or a Push.
type Merge struct {
	Commit    string   `json:"commit"`
	Taken     int      `json:"taken"`     // paths that changed on one side only
	Merged    int      `json:"merged"`    // paths that changed on both sides
	Conflicts []string `json:"conflicts"` // opaque paths that kept both versions
}

// Get returns the value of a path, or ErrNotFound.
func (s State) Get(ctx context.Context, path string) (b []byte, err error) {
	return b, s.self.call(ctx, "GET", "state/"+path, nil, &b)
}

// Counter returns the value of a counter, 0 for a missing one.
func (s State) Counter(ctx context.Context, path string) (int64, error) {
	b, err := s.Get(ctx, path)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// Put replaces the value of a path.
func (s State) Put(ctx context.Context, path string, value []byte) error {
	return s.self.call(ctx, "PUT", "state/"+path, value, nil)
}

// Add adds n, which may be negative, to a path of type counter.
func (s State) Add(ctx context.Context, path string, n int64) error {
	return s.patch(ctx, path, strconv.FormatInt(n, 10))
}

// Append adds lines to a path of type append-log. Its cost grows with the lines, not the log.
func (s State) Append(ctx context.Context, path string, lines ...string) error {
	return s.patch(ctx, path, strings.Join(lines, "\n")+"\n")
}

// Include adds members to a path of type set.
func (s State) Include(ctx context.Context, path string, members ...string) error {
	return s.patch(ctx, path, "+"+strings.Join(members, "\n+"))
}

// Exclude removes members from a path of type set.
func (s State) Exclude(ctx context.Context, path string, members ...string) error {
	return s.patch(ctx, path, "-"+strings.Join(members, "\n-"))
}

func (s State) patch(ctx context.Context, path, delta string) error {
	return s.self.call(ctx, "PATCH", "state/"+path, []byte(delta), nil)
}

// Delete removes a path.
func (s State) Delete(ctx context.Context, path string) error {
	return s.self.call(ctx, "DELETE", "state/"+path, nil, nil)
}

// Commit makes all writes so far survive this instance; they are durable on return. It returns
// ErrLost once if the agent lost some of them. Nothing is committed then, so write again.
func (s State) Commit(ctx context.Context, message string) error {
	return s.self.call(ctx, "POST", "state/commit", map[string]string{"message": message}, nil)
}

// Change is the content of one commit, all of it or nothing. Each path occurs once.
type Change struct {
	Message string            `json:"message,omitempty"`
	Put     map[string]string `json:"put,omitempty"` // by path: the whole value
	// by path: "3" for a counter, lines for a log, "+member" for a set
	Patch  map[string]string `json:"patch,omitempty"`
	Delete []string          `json:"delete,omitempty"` // paths
}

// CommitChange commits a change and all writes so far; they are durable on return.
func (s State) CommitChange(ctx context.Context, c Change) error {
	return s.self.call(ctx, "POST", "state/commit", c, nil)
}

// Pull merges the states that others have pushed.
func (s State) Pull(ctx context.Context) (m Merge, err error) {
	return m, s.self.call(ctx, "POST", "state/pull", nil, &m)
}

// Push commits, then merges this branch into main. The result is durable on return.
func (s State) Push(ctx context.Context) (m Merge, err error) {
	return m, s.self.call(ctx, "POST", "state/push", nil, &m)
}
