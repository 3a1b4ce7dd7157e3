// Package screen shows a run while it happens. On a terminal it redraws ten times a second;
// otherwise it prints plain lines. The content comes from a View; the package stores none of it.
package screen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// ErrInterrupted is the error of a run that a user ended.
var ErrInterrupted = errors.New("interrupted: what the demo had started is gone again")

// Ended returns ErrInterrupted instead of err if the run was interrupted, because the interrupt
// caused err.
func Ended(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ErrInterrupted) {
		return err
	}
	return ErrInterrupted
}

// View is a run that can be watched. Its methods are called from one goroutine at a time.
type View interface {
	// Draw returns the whole screen, which has width times height cells.
	Draw(width, height int) string
	// Lines returns the lines that are new since the last call.
	Lines() []string
}

// frame is the interval between two drawings of the screen, look the interval between two reads of
// plain lines.
const frame, look = 100 * time.Millisecond, 50 * time.Millisecond

// Terminal reports whether a file is a terminal.
func Terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Show shows the run until the caller calls end. It calls quit when the viewer ends the run.
func Show(ctx context.Context, quit func(), v View, plain bool) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var viewing sync.WaitGroup
	viewing.Go(func() {
		if plain {
			lines(ctx, v, os.Stdout)
		} else {
			live(ctx, quit, v)
		}
	})
	return func() {
		cancel()
		viewing.Wait()
	}
}

func lines(ctx context.Context, v View, w io.Writer) {
	for {
		for _, l := range v.Lines() {
			fmt.Fprintln(w, l)
		}
		if pando.Sleep(ctx, clock.Clock{}, look) != nil {
			return
		}
	}
}

// live draws the run until ctx ends. The keys q and Ctrl-C end the run.
func live(ctx context.Context, quit func(), v View) {
	p := tea.NewProgram(model{view: v, quit: quit, width: 100, height: 40}, tea.WithContext(ctx))
	if _, err := p.Run(); err != nil && ctx.Err() == nil {
		quit()
	}
}

type frameMsg struct{}

type model struct {
	view          View
	quit          func()
	width, height int
}

func next() tea.Cmd { return tea.Tick(frame, func(time.Time) tea.Msg { return frameMsg{} }) }

// Init implements tea.Model.
func (m model) Init() tea.Cmd { return next() }

// Update implements tea.Model.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		if k := msg.String(); k == "q" || k == "ctrl+c" {
			m.quit()
			return m, tea.Quit
		}
	case frameMsg:
		return m, next()
	}
	return m, nil
}

// View implements tea.Model.
func (m model) View() tea.View { return tea.NewView(m.view.Draw(m.width, m.height)) }
