// Package report writes one self-contained HTML page about a run: plots, facts and checks. It draws what it is given and
// never computes a figure of its own.
package report

import (
	"fmt"
	"html/template"
	"io"
	"strings"
)

// Page is all that is shown.
type Page struct {
	Title  string
	Charts []Chart
	Checks []Check
	Facts  []Fact
}

// Chart is a plot over time; its lines share one scale, which begins at zero.
type Chart struct {
	Title string // with the unit
	Lines []Line
}

// Line is one named series of a chart.
type Line struct {
	Name   string
	Points []Point
}

// Point is a value at a time since the run began.
type Point struct{ Seconds, Value float64 }

// Check is something that had to hold.
type Check struct {
	Name, Detail string
	Held         bool
}

// Fact is a parameter or a version.
type Fact struct{ Name, Value string }

// Write renders the page.
func Write(w io.Writer, p Page) error {
	if err := page.Execute(w, p); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// The plot's area inside its SVG, in the SVG's own units.
const left, right, top, bottom = 60.0, 700.0, 10.0, 190.0

// Max is the greatest value and the latest time of the chart, at least 1 of each so that an empty chart has a scale.
func (c Chart) Max() Point {
	m := Point{1, 1}
	for _, l := range c.Lines {
		for _, p := range l.Points {
			m.Seconds, m.Value = max(m.Seconds, p.Seconds), max(m.Value, p.Value)
		}
	}
	return m
}

// Path is the SVG path of one of the chart's lines.
func (c Chart) Path(l Line) string {
	m, b := c.Max(), strings.Builder{}
	for i, p := range l.Points {
		verb := 'L'
		if i == 0 {
			verb = 'M'
		}
		fmt.Fprintf(&b, "%c%.1f %.1f", verb, left+(right-left)*p.Seconds/m.Seconds, bottom-(bottom-top)*p.Value/m.Value)
	}
	return b.String()
}

var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
:root { color-scheme: light dark; --ink: #223; --ground: #fff; --grid: #ccd; --c0: #2457c5; --c1: #c2571a; --c2: #2a7d3f }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --ground: #131925; --grid: #445; --c0: #7aa5ff; --c1: #ffa35c; --c2: #6c8 } }
body { font: 16px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 760px; margin: auto; padding: 1em }
h2 { font-size: 1.1em; margin-bottom: 0 } svg { width: 100%; height: auto } svg text { fill: var(--ink); font-size: 13px }
path { fill: none; stroke-width: 2 } .grid { stroke: var(--grid); stroke-width: 1 }
.l0 { stroke: var(--c0) } .l1 { stroke: var(--c1) } .l2 { stroke: var(--c2) } .k0 { color: var(--c0) } .k1 { color: var(--c1) } .k2 { color: var(--c2) }
td, th { text-align: left; vertical-align: top; padding: .15em 1em .15em 0; overflow-wrap: anywhere }
</style>
<h1>{{.Title}}</h1>
{{range $c := .Charts}}<h2>{{.Title}}</h2>
<p>{{range $i, $l := .Lines}}<b class="k{{$i}}">■</b> {{.Name}} {{end}}</p>
<svg viewBox="0 0 720 220" role="img" aria-label="{{.Title}}"><path class="grid" d="M60 10V190H700M60 10H700"/>
<text x="54" y="20" text-anchor="end">{{printf "%.4g" .Max.Value}}</text><text x="54" y="190" text-anchor="end">0</text>
<text x="60" y="210">0 s</text><text x="700" y="210" text-anchor="end">{{printf "%.1f" .Max.Seconds}} s</text>
{{range $i, $l := .Lines}}<path class="l{{$i}}" d="{{$c.Path $l}}"/>{{end}}</svg>
{{end}}<h2>Checks</h2><table>{{range .Checks}}<tr><th>{{if .Held}}✓ held{{else}}✗ FAILED{{end}}</th><td>{{.Name}}</td><td>{{.Detail}}</td></tr>{{end}}</table>
<h2>The run</h2><table>{{range .Facts}}<tr><th>{{.Name}}</th><td>{{.Value}}</td></tr>{{end}}</table>
</html>
`))
