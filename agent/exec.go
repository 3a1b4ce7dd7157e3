package agent

import (
	"context"
	"fmt"
	"io"
	"sync"

	"pando.run/pando"
)

// sessions counts the commands that operators run inside instances of this host.
type sessions struct {
	mu   sync.Mutex
	open int
}

// enter takes one of the places. It reports whether one was free.
func (s *sessions) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= pando.SessionsMax {
		return false
	}
	s.open++
	return true
}

func (s *sessions) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
}

// Exec implements pando.HostAgent.
func (w *window) Exec(
	ctx context.Context, i pando.InstanceID, s pando.SessionSpec,
) (io.ReadWriteCloser, error) {
	r, err := w.agent.runner(i)
	if err != nil {
		return nil, err
	}
	now := w.agent.statusOf(r)
	if !now.runs {
		return nil, fmt.Errorf("%w: the program of instance %s does not run", pando.ErrConflict, i)
	}
	if !w.sessions.enter() {
		return nil, fmt.Errorf("%w: host %s has %d sessions; end one of them", pando.ErrRefused,
			w.agent.Host.Name, pando.SessionsMax)
	}
	conn, err := now.box.Session(ctx, s)
	if err != nil {
		w.sessions.leave()
		return nil, err
	}
	return &counted{ReadWriteCloser: conn, leave: sync.OnceFunc(w.sessions.leave)}, nil
}

// counted is a session that frees its place when it closes.
type counted struct {
	io.ReadWriteCloser
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.ReadWriteCloser.Close()
}
