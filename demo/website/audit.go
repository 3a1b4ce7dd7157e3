package website

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"pando.run/pando"
	"pando.run/pando/demo/report"
)

// audit is the content of the service's merged state, read from a clone of it.
type audit struct {
	lines, twice int
	counter      int
	served       map[string]int // lines by the instance that wrote them
}

// auditOf clones the state with git, as any user could, and counts the lines.
func (s *stage) auditOf(ctx context.Context, name pando.ServiceKey) (audit, error) {
	a := audit{served: map[string]int{}}
	clone := s.dir.File("clone")
	if _, err := s.on(ctx, hostName, "git", "clone", "--quiet",
		"http://127.0.0.1:7400/state/"+string(name.Name)+".git", clone); err != nil {
		return a, fmt.Errorf("clone the merged state: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(clone, "requests"))
	if err != nil {
		return a, fmt.Errorf("read the merged counter: %w", err)
	}
	if a.counter, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return a, fmt.Errorf("read the merged counter: %w", err)
	}
	if err := a.read(filepath.Join(clone, "access.log")); err != nil {
		return a, fmt.Errorf("read the merged access log: %w", err)
	}
	return a, nil
}

// read counts the lines of the access log. The log is the concatenation of the files in its folder,
// ordered by path. A line begins with INSTANCE-NUMBER, which identifies it.
func (a *audit) read(folder string) error {
	var chunks []io.Reader
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		chunks = append(chunks, bytes.NewReader(b))
		return err
	})
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	lines := bufio.NewScanner(io.MultiReader(chunks...))
	for lines.Scan() {
		id, _, _ := strings.Cut(lines.Text(), " ")
		if seen[id] {
			a.twice++
		}
		seen[id] = true
		a.lines++
		if end := strings.LastIndexByte(id, '-'); end > 0 {
			a.served[id[:end]]++
		}
	}
	return lines.Err()
}

// checks compares the state with the load. A request that failed may have left its line: its host
// died between the line and the answer.
func (a audit) checks(answered, failed int) []report.Check {
	lines := report.Check{Name: "requests answered = lines in the merged access log",
		Detail: fmt.Sprintf("%d = %d", answered, a.lines), Held: answered == a.lines}
	if failed > 0 {
		lines = report.Check{Name: "each answered request has a line in the access log",
			Detail: fmt.Sprintf("%d answered, %d lines: %d of the %d that failed have one", answered,
				a.lines, a.lines-answered, failed),
			Held: a.lines >= answered && a.lines <= answered+failed}
	}
	return []report.Check{lines,
		{Name: "lines = the merged counter", Detail: fmt.Sprintf("%d = %d", a.lines, a.counter),
			Held: a.lines == a.counter},
		{Name: "each line stands there once", Detail: fmt.Sprintf("%d twice", a.twice),
			Held: a.twice == 0},
	}
}
