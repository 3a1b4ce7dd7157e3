// Package contract compares what a program and its clients see of an instance of Pando with what
// they see of a container of Podman, by one image and in one run. Each difference is mended or stands
// in differences.txt with its reason, from which the guide's table is made.
//
// It never says which of two answers is right: the table does.
package contract

import (
	"fmt"
	"slices"
	"strings"
)

// Row is one line of differences.txt: a pattern of the observations that differ, and why.
type Row struct {
	Pattern string // of CASE/FAMILY/NAME, several with commas; * stands for any text
	Topic   string // in the words of the guide
	Reason  string
}

// ReadRows reads the rows of a table: PATTERN, TOPIC and REASON with | between them.
func ReadRows(text string) (out []Row, err error) {
	for n, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, "|")
		if len(parts) != 3 {
			return nil, fmt.Errorf("line %d: want PATTERN | TOPIC | REASON", n+1)
		}
		out = append(out, Row{strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1]),
			strings.TrimSpace(parts[2])})
	}
	return out, nil
}

// Matches reports whether a row is about an observation.
func (r Row) Matches(name string) bool {
	return slices.ContainsFunc(strings.Split(r.Pattern, ","), func(p string) bool {
		return matches(strings.TrimSpace(p), name)
	})
}

// matches reports whether a text is of a pattern in which * stands for any text.
func matches(pattern, text string) bool {
	before, after, star := strings.Cut(pattern, "*")
	rest, ok := strings.CutPrefix(text, before)
	if !ok || !star {
		return ok && rest == ""
	}
	for n := range len(rest) + 1 {
		if matches(after, rest[n:]) {
			return true
		}
	}
	return false
}

// Difference is an observation with two values.
type Difference struct{ Name, Podman, Pando string }

// Compare returns the differences that no row explains, and the rows that explain none.
func Compare(podman, pando map[string]string, rows []Row) (open []Difference, idle []Row) {
	used := make([]bool, len(rows))
	names := map[string]bool{}
	for name := range podman {
		names[name] = true
	}
	for name := range pando {
		names[name] = true
	}
	for name := range names {
		a, inPodman := podman[name]
		b, inPando := pando[name]
		if a == b && inPodman == inPando {
			continue
		}
		n := slices.IndexFunc(rows, func(r Row) bool { return r.Matches(name) })
		if n < 0 {
			open = append(open, Difference{name, a, b})
			continue
		}
		used[n] = true
	}
	for n, r := range rows {
		if !used[n] {
			idle = append(idle, r)
		}
	}
	slices.SortFunc(open, func(a, b Difference) int { return strings.Compare(a.Name, b.Name) })
	return open, idle
}

// Table returns the rows as the table of the guide.
func Table(rows []Row) string {
	var b strings.Builder
	b.WriteString("| what | why it differs |\n|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |\n", r.Topic, r.Reason)
	}
	return b.String()
}
