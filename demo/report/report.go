// Package report writes one self-contained HTML page about a run: plots, figures, checks and
// decisions. It draws the given values and never computes a figure of its own.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

// Page is the content of a report.
type Page struct {
	Title, Lead string
	Figures     []Fact
	Charts      []Chart
	Marks       []Mark // shown on every chart
	Lives       Lives
	Checks      []Check
	Tables      []Table
	Decisions   []Decision
	Facts       []Fact
}

// Chart is a plot over time. Its lines share one scale. The scale begins at zero, or is logarithmic
// if Log is set.
type Chart struct {
	Title string // includes the unit
	Lines []Line
	Log   bool
	Step  bool    // values hold until the next one
	Until float64 // seconds at the right edge; 0 = the latest point
}

// Line is one named series of a chart. The area under it is filled if Area is set.
type Line struct {
	Name   string
	Area   bool
	Points []Point
}

// Point is a value at a time since the run began.
type Point struct{ Seconds, Value float64 }

// Mark is a moment that is marked in every chart.
type Mark struct {
	Seconds float64
	Name    string
}

// Table is rows of text. Every column except the first is aligned to the right if Numbers is set.
type Table struct {
	Title, Note string
	Numbers     bool
	Head        []string
	Rows        [][]string
}

// Lives is the chart of lives, with the labels of its three kinds of spans. A kind with an empty
// label does not occur.
type Lives struct {
	Title, Starting, Serving, Leaving string
	Rows                              []Life
}

// Life is one bar of the chart of lives: the phases of one instance over time.
type Life struct {
	Name  string
	Spans []Span
}

// Span is a period of a life. Kind is starting, serving or leaving.
type Span struct {
	Kind     string
	From, To float64 // seconds since the run began
}

// Check is a condition that had to hold.
type Check struct {
	Name, Detail string
	Held         bool
}

// Fact is a parameter, a figure or a version.
type Fact struct{ Name, Value string }

// Decision is one ask or decision, and its outcome.
type Decision struct{ At, Who, What, Why, Outcome string }

// Held reports whether every check held.
func (p Page) Held() bool {
	for _, c := range p.Checks {
		if !c.Held {
			return false
		}
	}
	return true
}

// Until returns the right edge that all pictures of the page share.
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
