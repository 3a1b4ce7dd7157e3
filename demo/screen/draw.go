package screen

import (
	"fmt"
	"strings"
)

// Control sequences that change the style of text on a terminal.
const (
	Bold, Dim, Plain = "\x1b[1m", "\x1b[2m", "\x1b[0m"
	Blue, Orange     = "\x1b[34m", "\x1b[33m"
)

// Head returns the first lines of a screen: the title and the current step.
func Head(title, about, step string, width int) string {
	return fmt.Sprintf("%s%s%s   %s   %sq ends it%s\n%s\n\n", Bold, title, Plain, about, Dim, Plain,
		Cut(step, width))
}

// Strip returns one line: a name, values over the time of the run, and the newest value in the
// given format.
func Strip(name, colour string, values []float64, format string, width int) string {
	newest := 0.0
	if len(values) > 0 {
		newest = values[len(values)-1]
	}
	return fmt.Sprintf("%-14s %s%s%s "+format+"\n", name, colour, bars(values, max(10, width-36)),
		Plain, newest)
}

// Tail returns the last lines that fit into the room.
func Tail(lines []string, room, width int) string {
	if room > 0 && len(lines) > room {
		lines = lines[len(lines)-room:]
	}
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(Cut(l, width) + "\n")
	}
	return b.String()
}

// bars draws the values of the whole run as a strip of blocks. Each block shows the highest value
// of its share.
func bars(values []float64, width int) string {
	blocks := []rune(" ▁▂▃▄▅▆▇█")
	out := []rune(strings.Repeat(" ", width))
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	if top == 0 {
		return string(out)
	}
	cells := make([]float64, width)
	shown := max(len(values), width)
	for i, v := range values {
		at := i * width / shown
		cells[at] = max(cells[at], v)
	}
	for i, v := range cells {
		if v > 0 {
			out[i] = blocks[min(8, 1+int(v/top*7.999))]
		}
	}
	return string(out)
}

// Cut shortens a line to the width of the screen.
func Cut(text string, width int) string {
	if r := []rune(text); len(r) > width && width > 1 {
		return string(r[:width-1]) + "…"
	}
	return text
}
