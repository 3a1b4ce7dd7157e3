package report

import (
	"fmt"
	"math"
	"strings"
)

// The plot's area inside its SVG, in the SVG's units.
const (
	left, right = 104.0, 944.0
	top, bottom = 12.0, 196.0
	barHeight   = 18.0
)

// Tick is a labelled place on an axis.
type Tick struct {
	At    float64 // in the SVG's units
	Label string
}

func (c Chart) right() float64 {
	edge := c.Until
	for _, l := range c.Lines {
		for _, p := range l.Points {
			edge = max(edge, p.Seconds)
		}
	}
	return max(edge, 1)
}

// scale returns the lowest and the highest value of the chart's axis.
func (c Chart) scale() (low, high float64) {
	low, high = math.Inf(1), 0
	for _, l := range c.Lines {
		for _, p := range l.Points {
			high = max(high, p.Value)
			if p.Value > 0 {
				low = min(low, p.Value)
			}
		}
	}
	if high == 0 {
		return 0, 1
	}
	if !c.Log {
		step := c.step(high)
		return 0, step * math.Ceil(high/step)
	}
	low, high = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))
	return low, max(high, 10*low)
}

// stepOf returns a round step that divides an axis up to high into 3 to 6 parts.
func stepOf(high float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(high)))
	for _, m := range []float64{0.2, 0.5, 1, 2} {
		if high/(m*power) <= 5 {
			return m * power
		}
	}
	return 2 * power
}

// step returns the distance between two ticks of the value axis. It is at least 1 if the values are
// whole steps.
func (c Chart) step(high float64) float64 {
	if c.Step {
		return max(1, stepOf(high))
	}
	return stepOf(high)
}

func (c Chart) x(seconds float64) float64 { return left + (right-left)*seconds/c.right() }

func (c Chart) y(value float64) float64 {
	low, high := c.scale()
	part := (value - low) / (high - low)
	if c.Log {
		part = math.Log10(max(value, low)/low) / math.Log10(high/low)
	}
	return bottom - (bottom-top)*part
}

// Rows returns the ticks of the value axis.
func (c Chart) Rows() []Tick {
	low, high := c.scale()
	var out []Tick
	if c.Log {
		for v := low; v <= high*1.001; v *= 10 {
			out = append(out, Tick{c.y(v), fmt.Sprintf("%g", v)})
		}
		return out
	}
	step := c.step(high)
	for n := 0; float64(n)*step <= high*1.001; n++ {
		out = append(out, Tick{c.y(float64(n) * step), fmt.Sprintf("%.6g", float64(n)*step)})
	}
	return out
}

// Columns returns the ticks of the time axis.
func (c Chart) Columns() []Tick { return columns(c.right()) }

// Columns returns the ticks of the time axis that all pictures share.
func (p Page) Columns() []Tick { return columns(p.Until()) }

func columns(until float64) []Tick {
	step := stepOf(until)
	var out []Tick
	for n := 0; float64(n)*step <= until; n++ {
		at := float64(n) * step
		out = append(out, Tick{left + (right-left)*at/until, fmt.Sprintf("%.6g s", at)})
	}
	return out
}

// Path returns the SVG path of one of the chart's lines.
func (c Chart) Path(l Line) string {
	b := strings.Builder{}
	for i, p := range l.Points {
		verb := 'L'
		if i == 0 {
			verb = 'M'
		} else if c.Step {
			fmt.Fprintf(&b, "H%.1f", c.x(p.Seconds))
		}
		fmt.Fprintf(&b, "%c%.1f %.1f", verb, c.x(p.Seconds), c.y(p.Value))
	}
	return b.String()
}

// Fill returns the SVG path of the area under a line.
func (c Chart) Fill(l Line) string {
	if len(l.Points) == 0 {
		return ""
	}
	return fmt.Sprintf("%sV%.1fH%.1fZ", c.Path(l), bottom, c.x(l.Points[0].Seconds))
}

// MarksAt returns the places of the page's marks.
func (p Page) MarksAt() []Tick {
	var out []Tick
	for _, m := range p.Marks {
		out = append(out, Tick{left + (right-left)*m.Seconds/p.Until(), m.Name})
	}
	return out
}

// Bar is one span of a life as a rectangle.
type Bar struct {
	X, Y, Width, Height float64
	Kind                string
}

// Row is the picture of one life.
type Row struct {
	Name  string
	Label float64 // the height of the name
	Bars  []Bar
}

// Rows returns the lives, one below the other.
func (p Page) Rows() []Row {
	until := p.Until()
	var out []Row
	for n, l := range p.Lives.Rows {
		y := 8 + float64(n)*(barHeight+4)
		row := Row{Name: l.Name, Label: y + barHeight - 5}
		for _, s := range l.Spans {
			row.Bars = append(row.Bars, Bar{
				X: left + (right-left)*s.From/until, Y: y, Height: barHeight, Kind: s.Kind,
				Width: max(1, (right-left)*(s.To-s.From)/until),
			})
		}
		out = append(out, row)
	}
	return out
}

// LivesHeight returns the height of the picture of lives without its axis.
func (p Page) LivesHeight() float64 { return 12 + float64(len(p.Lives.Rows))*(barHeight+4) }

// LivesFoot returns the height of the labels of the axis.
func (p Page) LivesFoot() float64 { return p.LivesHeight() + 16 }

// LivesWhole returns the height of the picture of lives with its axis.
func (p Page) LivesWhole() float64 { return p.LivesHeight() + 24 }
