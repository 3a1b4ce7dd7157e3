package state

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"

	"pando.run/pando"
)

// Limits of one path.
const (
	PathBytesMax  = 1024
	ValueBytesMax = 16 << 20
)

// CheckPath returns an error unless p is a plain relative path. A path must not climb out, use
// git's own names or have two forms.
func CheckPath(p string) error {
	bad := func(why string) error {
		return fmt.Errorf("%w: state path %q: %s", pando.ErrInvalid, p, why)
	}
	switch {
	case p == "":
		return bad("it is empty")
	case len(p) > PathBytesMax:
		return bad(fmt.Sprintf("it is longer than %d bytes", PathBytesMax))
	case strings.HasPrefix(p, "/"):
		return bad("it must not begin with /")
	case strings.ContainsAny(p, "\x00\n"):
		return bad("it contains a NUL or a line break")
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "":
			return bad("it has an empty part")
		case part == "." || part == "..":
			return bad("it has a part " + part)
		case gits(part):
			return bad("git keeps names that begin with .git for itself")
		}
	}
	return nil
}

// gits reports whether git takes a name for one of its own on any file system. A clone must not
// contain such a name.
func gits(part string) bool {
	plain := strings.ToLower(strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1 // macOS ignores it in names
		}
		return r
	}, part))
	return strings.HasPrefix(plain, ".git") || strings.HasPrefix(plain, "git~") ||
		strings.ContainsAny(part, `\:`) && strings.Contains(plain, ".git")
}

// types chooses the merge type of each path.
type types struct {
	exact    map[string]pando.StateType
	patterns []string // longest first, so that the most specific wins
	of       map[string]pando.StateType
}

func newTypes(of map[string]pando.StateType) types {
	t := types{exact: map[string]pando.StateType{}, of: of}
	for p, typ := range of {
		if strings.ContainsAny(p, "*?[") {
			t.patterns = append(t.patterns, p)
		} else {
			t.exact[p] = typ
		}
	}
	slices.SortFunc(t.patterns, func(a, b string) int { return len(b) - len(a) })
	return t
}

func (t types) typeOf(p string) pando.StateType {
	if typ, ok := t.exact[p]; ok {
		return typ
	}
	for _, pattern := range t.patterns {
		if matches(pattern, p) {
			return t.of[pattern]
		}
	}
	return pando.StateLast
}

// matches is path.Match, plus "**" for any number of parts.
func matches(pattern, p string) bool {
	head, tail, deep := strings.Cut(pattern, "**")
	if !deep {
		ok, _ := path.Match(pattern, p)
		return ok
	}
	if !strings.HasPrefix(p, head) {
		return false
	}
	tail = strings.TrimPrefix(tail, "/")
	if tail == "" {
		return true
	}
	parts := strings.Split(p[len(head):], "/")
	for n := range parts {
		if ok, _ := path.Match(tail, strings.Join(parts[n:], "/")); ok {
			return true
		}
	}
	return false
}
