package cli

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

// Page is the text that a command prints for people. On a terminal, lines are cut to the width and
// failures are red.
type Page struct {
	bytes.Buffer
	width  int // columns of the terminal; 0 = no terminal, lines are not cut
	colour bool
}

// NewPage returns an empty page for the standard output of a command.
func NewPage(env Env) *Page {
	f, ok := env.Stdout.(*os.File)
	if !ok || !IsTerminal(f) {
		return &Page{}
	}
	p := &Page{width: 80}
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		p.width = int(size.Col)
	}
	p.colour = env.Getenv("NO_COLOR") == "" && env.Getenv("TERM") != "dumb"
	return p
}

// Fit cuts a line to the width of the terminal.
func (p *Page) Fit(line string) string {
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
var alarming = []string{"failed", "failing", "degraded", "problem", "unhealthy", "away", "dead", "lost"}

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

// Columns writes rows of tab-separated cells as an aligned table.
func Columns(w io.Writer, rows ...string) {
	p, ok := w.(*Page)
	if !ok {
		p = &Page{}
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
				c = (&Page{width: max(left, 0)}).Fit(c)
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

// Clean replaces control characters and line breaks in the text of an instance, so that the text
// cannot control the terminal.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		if r == '\t' {
			return ' '
		}
		return unicode.ReplacementChar
	}, text)
}

// CleanLines is Clean for a text of several lines.
func CleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for n, l := range lines {
		lines[n] = Clean(l)
	}
	return strings.Join(lines, "\n")
}

// Harmless writes text to a terminal without its control characters.
type Harmless struct {
	To   io.Writer
	rest []byte // the beginning of an incomplete character or line break
}

// Write implements io.Writer.
func (h *Harmless) Write(b []byte) (int, error) {
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
	if end > 0 && text[end-1] == '\r' { // a line break may follow
		end--
	}
	out := CleanLines(strings.ReplaceAll(string(text[:end]), "\r\n", "\n"))
	h.rest = append([]byte(nil), text[end:]...)
	if _, err := io.WriteString(h.To, out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Count returns a number with its noun, in the plural if needed.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// IsTerminal reports whether an output is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
