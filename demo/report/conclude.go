package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"
)

// Save writes a page to a file. It replaces a report, and no other file.
func Save(name string, page Page) error {
	if err := Possible(name); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("make the report: %w", err)
	}
	return errors.Join(Write(f, page), f.Close())
}

// mark is in the head of each report.
const mark = `<meta name="generator" content="pando-demo">`

// Possible returns an error if no page can be written to the file, or if another file is there. The
// demo calls it before a run.
func Possible(name string) error {
	text, missing := os.ReadFile(name)
	if missing == nil && len(text) > 0 &&
		!bytes.Contains(text[:min(len(text), 200)], []byte(mark)) {
		return fmt.Errorf("make the report: %s is there and is no report; --report names another file",
			name)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("make the report: %w; --report names another file", err)
	}
	if err := f.Close(); err != nil || missing == nil {
		return err
	}
	return os.Remove(name)
}

// Conclude prints the page's figures and checks, saves the page, and returns an error if a check
// failed.
func Conclude(w io.Writer, name string, page Page) error {
	wide := 0
	for _, f := range page.Figures {
		wide = max(wide, utf8.RuneCountInString(f.Name))
	}
	for _, c := range page.Checks {
		wide = max(wide, utf8.RuneCountInString(c.Name))
	}
	for _, f := range page.Figures {
		fmt.Fprintf(w, "  %-*s  %s\n", wide, f.Name, f.Value)
	}
	failed := 0
	for _, c := range page.Checks {
		mark := "✓"
		if !c.Held {
			mark, failed = "✗", failed+1
		}
		fmt.Fprintf(w, "%s %-*s  %s\n", mark, wide, c.Name, c.Detail)
	}
	if err := Save(name, page); err != nil {
		return err
	}
	fmt.Fprintf(w, "report: %s\n", name)
	if failed > 0 {
		return fmt.Errorf("%d of %d checks did not hold: see %s", failed, len(page.Checks), name)
	}
	return nil
}
