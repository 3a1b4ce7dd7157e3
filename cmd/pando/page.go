package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// page is the text that a command prints for people. On a terminal, lines are cut to the width and
// failures are red.
type page struct {
	bytes.Buffer
	width  int // columns of the terminal; 0 = no terminal, lines are not cut
	colour bool
}

// newPage returns an empty page for the standard output of a command.
func newPage(env Env) *page {
	f, ok := env.Stdout.(*os.File)
	if !ok || !isTerminal(f) {
		return &page{}
	}
	p := &page{width: 80}
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		p.width = int(size.Col)
	}
	p.colour = env.Getenv("NO_COLOR") == "" && env.Getenv("TERM") != "dumb"
	return p
}

// fit cuts a line to the width of the terminal.
func (p *page) fit(line string) string {
	if p.width == 0 || utf8.RuneCountInString(line) <= p.width {
		return line
	}
	return string([]rune(line)[:p.width-1]) + "…"
}

const (
	red   = "\x1b[31m"
	plain = "\x1b[0m"
)

// alarming lists the words that a terminal shows in red.
var alarming = []string{"failed", "degraded", "problem", "unhealthy", "away", "dead", "lost"}

// paint colours a cell of a table if its first word is alarming.
func paint(cell string) string {
	word, _, _ := strings.Cut(cell, " ")
	for _, a := range alarming {
		if word == a {
			return red + word + plain + cell[len(word):]
		}
	}
	return cell
}

// columns writes rows of tab-separated cells as an aligned table.
func columns(w io.Writer, rows ...string) {
	p, ok := w.(*page)
	if !ok {
		p = &page{}
	}
	var widths []int
	for _, r := range rows {
		cells := strings.Split(r, "\t")
		for n, c := range cells[:len(cells)-1] {
			if n == len(widths) {
				widths = append(widths, 0)
			}
			widths[n] = max(widths[n], utf8.RuneCountInString(c))
		}
	}
	for _, r := range rows {
		left := p.width
		line := ""
		cells := strings.Split(r, "\t")
		for n, c := range cells {
			if left > 0 || p.width == 0 {
				c = (&page{width: max(left, 0)}).fit(c)
			} else {
				c = ""
			}
			pad := ""
			if n < len(cells)-1 {
				pad = strings.Repeat(" ", widths[n]-utf8.RuneCountInString(c)+2)
				left -= widths[n] + 2
			}
			if p.colour {
				c = paint(c)
			}
			line += c + pad
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// clean replaces control characters and line breaks in the text of an instance, so that the text
// cannot control the terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		if r == '\t' {
			return ' '
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
}

// cleanLines is clean for a text of several lines.
func cleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for n, l := range lines {
		lines[n] = clean(l)
	}
	return strings.Join(lines, "\n")
}

// harmless writes text to a terminal without its control characters.
type harmless struct {
	to   io.Writer
	rest []byte // the beginning of an incomplete character
}

// Write implements io.Writer.
func (h *harmless) Write(b []byte) (int, error) {
	text := append(h.rest, b...)
	end := len(text)
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if c := text[len(text)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(text[len(text)-n:]) {
				end = len(text) - n
			}
			break
		}
	}
	out := cleanLines(strings.ReplaceAll(string(text[:end]), "\r\n", "\n"))
	h.rest = append([]byte(nil), text[end:]...)
	if _, err := io.WriteString(h.to, out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// count returns a number with its noun, in the plural if needed.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
