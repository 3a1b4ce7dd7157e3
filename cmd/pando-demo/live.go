package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// frame is how often the live view is drawn anew.
const frame = 100 * time.Millisecond

// live draws the run on a terminal until ctx ends; q or Ctrl-C ends the run.
func live(ctx context.Context, quit func(), t *timeline) {
	p := tea.NewProgram(screen{timeline: t, quit: quit, width: 100, height: 40}, tea.WithContext(ctx))
	if _, err := p.Run(); err != nil && ctx.Err() == nil {
		quit()
	}
}

type frameMsg struct{}

// screen is the live view.
type screen struct {
	timeline      *timeline
	quit          func()
	width, height int
}

func next() tea.Cmd { return tea.Tick(frame, func(time.Time) tea.Msg { return frameMsg{} }) }

// Init implements tea.Model.
func (s screen) Init() tea.Cmd { return next() }

// Update implements tea.Model.
func (s screen) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	switch m := m.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = m.Width, m.Height
	case tea.KeyPressMsg:
		if k := m.String(); k == "q" || k == "ctrl+c" {
			s.quit()
			return s, tea.Quit
		}
	case frameMsg:
		return s, next()
	}
	return s, nil
}

// View implements tea.Model.
func (s screen) View() tea.View {
	s.timeline.mu.Lock()
	defer s.timeline.mu.Unlock()
	return tea.NewView(s.timeline.draw(s.width, s.height))
}

const (
	bold, dim, plain = "\x1b[1m", "\x1b[2m", "\x1b[0m"
	blue, orange     = "\x1b[34m", "\x1b[33m"
)

// draw is the whole screen. The caller holds the lock.
func (t *timeline) draw(width, height int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%sPando: a website that scales itself%s   %s   %s\n%s\n\n", bold, plain, t.vip, dim+"q ends it"+plain, cut(t.step, width))
	offered, instances, p99 := t.series()
	strip := max(10, width-34)
	fmt.Fprintf(&b, "%-12s %s%s%s %7.0f /s\n", "offered", blue, bars(offered, strip), plain, newest(offered))
	fmt.Fprintf(&b, "%-12s %s%s%s %7.0f\n", "instances", orange, bars(instances, strip), plain, newest(instances))
	fmt.Fprintf(&b, "%-12s %s%s%s %7.1f ms\n", "p99", dim, bars(p99, strip), plain, newest(p99))
	fmt.Fprintf(&b, "\nanswered %d   failed %d   broken connections %d\n\n", t.totals.answered, t.totals.failed, t.totals.broken)
	for _, i := range t.now.Instances {
		colour := blue
		if !i.Phase.TakesFlows() {
			colour = orange
		}
		fmt.Fprintf(&b, "  %s●%s %s\n", colour, plain, cut(fmt.Sprintf("%-16s %-18s %-12s %s", i.ID, i.Endpoint, i.Phase, i.Reason), width-5))
	}
	told := t.told()
	room := height - 12 - len(t.now.Instances)
	if room > 0 && len(told) > room {
		told = told[len(told)-room:]
	}
	b.WriteByte('\n')
	for _, v := range told {
		d := t.row(v)
		fmt.Fprintf(&b, "%s\n", cut(fmt.Sprintf("%9s  %-14s %-26s %s → %s", d.At, d.Who, d.What, d.Why, d.Outcome), width))
	}
	return b.String()
}

// series are the values over time that are drawn as strips.
func (t *timeline) series() (offered, instances, p99 []float64) {
	for i, r := range t.totals.reports {
		v, _ := t.totals.rate(i)
		offered = append(offered, v)
		p99 = append(p99, float64(r.LatencyMicros[1])/1e3)
	}
	for _, c := range t.crowds {
		instances = append(instances, float64(c.serving))
	}
	return offered, instances, p99
}

func newest(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return v[len(v)-1]
}

// bars draws values as a strip of blocks: the whole run, each block the highest of its share.
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

// cut keeps a line on the screen.
func cut(text string, width int) string {
	if r := []rune(text); len(r) > width && width > 1 {
		return string(r[:width-1]) + "…"
	}
	return text
}
