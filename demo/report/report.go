// Package report writes one self-contained HTML page about a run: plots, figures, checks and what was decided. It draws
// what it is given and never computes a figure of its own.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

// Page is all that is shown.
type Page struct {
	Title, Lead string
	Figures     []Fact
	Charts      []Chart
	Marks       []Mark // on every chart
	Lives       Lives
	Checks      []Check
	Tables      []Table
	Decisions   []Decision
	Facts       []Fact
}

// Chart is a plot over time. Its lines share one scale, which begins at zero or, if Log is set, is logarithmic.
type Chart struct {
	Title string // with the unit
	Lines []Line
	Log   bool
	Step  bool    // values hold until the next one
	Until float64 // seconds at the right edge; 0: the latest point
}

// Line is one named series of a chart; the area under it is filled if Area is set.
type Line struct {
	Name   string
	Area   bool
	Points []Point
}

// Point is a value at a time since the run began.
type Point struct{ Seconds, Value float64 }

// Mark is a moment that every chart shows.
type Mark struct {
	Seconds float64
	Name    string
}

// Table is rows of text; columns behind the first are aligned to the right if Numbers is set.
type Table struct {
	Title, Note string
	Numbers     bool
	Head        []string
	Rows        [][]string
}

// Lives is the chart of lives, with the words for its three kinds of spans; a word that is empty is for spans that do not occur.
type Lives struct {
	Title, Starting, Serving, Leaving string
	Rows                              []Life
}

// Life is one bar of the chart of lives: what an instance was doing, and when.
type Life struct {
	Name  string
	Spans []Span
}

// Span is a stretch of a life; Kind is starting, serving or leaving.
type Span struct {
	Kind     string
	From, To float64 // seconds since the run began
}

// Check is something that had to hold.
type Check struct {
	Name, Detail string
	Held         bool
}

// Fact is a parameter, a figure or a version.
type Fact struct{ Name, Value string }

// Decision is one thing that was asked or decided, and what became of it.
type Decision struct{ At, Who, What, Why, Outcome string }

// Held says whether every check did.
func (p Page) Held() bool {
	for _, c := range p.Checks {
		if !c.Held {
			return false
		}
	}
	return true
}

// Until is the right edge that all pictures of the page share.
func (p Page) Until() float64 {
	until := 1.0
	for _, c := range p.Charts {
		until = max(until, c.right())
	}
	for _, l := range p.Lives.Rows {
		for _, s := range l.Spans {
			until = max(until, s.To)
		}
	}
	return until
}

//go:embed page.html
var source string

var page = template.Must(template.New("page").Parse(source))

// Write renders the page.
func Write(w io.Writer, p Page) error {
	until := p.Until()
	for i := range p.Charts {
		p.Charts[i].Until = until
	}
	if err := page.Execute(w, p); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
