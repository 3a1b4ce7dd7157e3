package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// cell is a text without a tab or a line break, as the rows of a table have it.
var cell = rapid.StringOf(rapid.OneOf(
	rapid.RuneFrom([]rune("abc ,-")), rapid.RuneFrom([]rune("äß€漢字")),
	rapid.Map(rapid.SampledFrom(alarming), func(word string) rune { return rune(word[0]) }),
))

func rows(t *rapid.T) (out []string) {
	word := rapid.OneOf(cell, rapid.SampledFrom(alarming))
	for range rapid.IntRange(1, 6).Draw(t, "rows") {
		out = append(out, strings.Join(rapid.SliceOfN(word, 1, 5).Draw(t, "cells"), "\t"))
	}
	return out
}

var colours = regexp.MustCompile("\x1b\\[[0-9]+m")

// A table fits any terminal, and colours change no letter of it.
func TestATableFitsTheTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rows(t)
		width := rapid.IntRange(1, 60).Draw(t, "width")
		bare, coloured := &Page{width: width}, &Page{width: width, colour: true}
		Columns(bare, all...)
		Columns(coloured, all...)
		lines := strings.Split(strings.TrimSuffix(bare.String(), "\n"), "\n")
		if len(lines) != len(all) {
			t.Fatalf("%d rows became %d lines", len(all), len(lines))
		}
		for n, line := range lines {
			if utf8.RuneCountInString(line) > width {
				t.Fatalf("row %q is %q, wider than %d", all[n], line, width)
			}
		}
		if got := colours.ReplaceAllString(coloured.String(), ""); got != bare.String() {
			t.Fatalf("with colours it is %q, without %q", got, bare.String())
		}
	})
}

// A page cuts nothing if its output is no terminal. Each column begins at one place in all rows.
func TestColumnsAreAligned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(1, 4).Draw(t, "columns")
		word := rapid.StringMatching(`[a-zä漢]{1,9}`)
		var all []string
		for range rapid.IntRange(1, 5).Draw(t, "rows") {
			all = append(all, strings.Join(rapid.SliceOfN(word, columns, columns).Draw(t, "row"), "\t"))
		}
		var out bytes.Buffer
		Columns(&out, all...)
		var begins []int
		for n, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
			cells := strings.Split(all[n], "\t")
			if got := strings.Fields(line); strings.Join(got, "\t") != all[n] {
				t.Fatalf("row %q became %q", all[n], line)
			}
			at, runes := 0, []rune(line)
			for c, text := range cells {
				for string(runes[at:at+1]) == " " {
					at++
				}
				if n == 0 {
					begins = append(begins, at)
				} else if begins[c] != at {
					t.Fatalf("column %d begins at %d in the first row, at %d in %q", c, begins[c], at, line)
				}
				at += utf8.RuneCountInString(text)
			}
		}
	})
}

// isHarmless reports whether a text can do nothing to a terminal.
func isHarmless(text string) bool {
	return utf8.ValidString(text) &&
		!strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) })
}

func FuzzCleanTextIsHarmless(f *testing.F) {
	f.Add("\x1b]0;title\x07\x1b[2J")
	f.Add("a\rb\u202ec\u200bd\x9b31m\xff\xc3")
	f.Add("\x1b\n\x1b")
	f.Fuzz(func(t *testing.T, text string) {
		one, many := Clean(text), CleanLines(text)
		if !isHarmless(one) || strings.Contains(one, "\n") || !isHarmless(many) {
			t.Errorf("%q became %q and %q", text, one, many)
		}
		if strings.Count(many, "\n") != strings.Count(text, "\n") {
			t.Errorf("%q lost or got lines: %q", text, many)
		}
		if Clean(one) != one || CleanLines(many) != many {
			t.Errorf("%q is cleaned twice", text)
		}
		if isHarmless(text) && many != text {
			t.Errorf("the harmless %q became %q", text, many)
		}
	})
}

// A command's output arrives in pieces of any size. A terminal gets the same text as from one
// piece, and never an incomplete or a forged character.
func TestPiecesOfAnOutputMakeTheSameText(t *testing.T) {
	part := rapid.OneOf(rapid.SampledFrom([]string{
		"\r\n", "\r", "\n", "\t", "ä", "漢", "🙂", "\xff", "\xe6\xbc", "\x1b[2J", "plain text", "\u202e",
	}))
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(part, 1, 12).Draw(t, "text"), "") + "end"
		var whole, pieces bytes.Buffer
		if n, err := (&Harmless{To: &whole}).Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("%d of %d bytes are taken: %v", n, len(text), err)
		}
		h := &Harmless{To: &pieces}
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			piece := bytes.Clone(rest[:n])
			if got, err := h.Write(piece); got != n || err != nil {
				t.Fatalf("%d of %d bytes are taken: %v", got, n, err)
			}
			clear(piece) // the caller uses its buffer again
			if rest = rest[n:]; !isHarmless(pieces.String()) {
				t.Fatalf("the terminal got %q", pieces.String())
			}
		}
		if pieces.String() != whole.String() {
			t.Fatalf("%q in pieces is %q, at once %q", text, pieces.String(), whole.String())
		}
	})
}

// fullDisk is an output that takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestAnIncompleteOutputIsAnError(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		o := &Output{Env: Env{Stdout: fullDisk{}, Getenv: os.Getenv}, JSON: asJSON}
		err := o.Show(map[string]int{"n": 1}, func(w io.Writer) { fmt.Fprint(w, "n is 1") })
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "incomplete") {
			t.Errorf("JSON %v: %v", asJSON, err)
		}
	}
	if _, err := (&Harmless{To: fullDisk{}}).Write([]byte("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the output of a command: %v", err)
	}
	var out bytes.Buffer
	o := &Output{Env: Env{Stdout: &out, Getenv: os.Getenv}, JSON: true}
	if err := o.Show(func() {}, nil); err == nil || out.Len() > 0 {
		t.Errorf("a value without a form in JSON printed %q (%v)", out.String(), err)
	}
}

func TestAProgramInAnotherLanguageIsFound(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := FindBeside("pando-none"); !errors.Is(err, pando.ErrNotFound) ||
		!strings.Contains(err.Error(), "make build") {
		t.Errorf("a missing program: %v", err)
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	program := filepath.Join(dir, "pando-other")
	if err := os.WriteFile(program, []byte("#!"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := FindBeside("pando-other"); err == nil {
		t.Errorf("a file that cannot be executed is found: %s", got)
	}
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := FindBeside("pando-other"); err != nil || got != program {
		t.Errorf("got %s (%v), want %s", got, err, program)
	}
}
