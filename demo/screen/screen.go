// Package screen shows a run as it happens: drawn anew ten times a second on a terminal, as plain lines elsewhere. What
// there is to see comes from a View; the package keeps nothing of it.
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
)

// ErrInterrupted is how a run ends that somebody ended.
var ErrInterrupted = errors.New("interrupted: what the demo had started is gone again")

// Ended is what a run has ended in: if it was interrupted that is all, for what failed then failed because of it.
func Ended(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ErrInterrupted) {
		return err
	}
	return ErrInterrupted
}

// View is a run that can be watched. Its methods are called from one goroutine at a time.
type View interface {
	// Draw is the whole screen of so many cells.
	Draw(width, height int) string
	// Lines are those that are new since the last call.
	Lines() []string
}

// frame is how often the screen is drawn anew, look how often plain lines are asked for.
const frame, look = 100 * time.Millisecond, 50 * time.Millisecond

// Terminal says whether a file is one.
func Terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Show shows the run until the function that it returns is called. quit is called when the viewer wants to end the run.
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
		if pando.Sleep(ctx, pando.WallClock{}, look) != nil {
			return
		}
	}
}

// live draws the run until ctx ends; q or Ctrl-C ends the run.
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
