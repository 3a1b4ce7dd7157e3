package unit

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
)

const (
	// answerWait bounds a conversation at a group's control socket.
	answerWait = 5 * time.Second
	// askWait bounds a conversation at a unit's control socket.
	askWait = time.Second
	// wordsBytesMax is the size of the longest request.
	wordsBytesMax = 16
)

// ControlSocket returns the path of the control socket of a unit or a group.
func ControlSocket(runDir, name string) string {
	return filepath.Join(runDir, name, "control.sock")
}

// Ask sends a request to a unit or a group and returns its answer.
func Ask(clock pando.Clock, path, words string) (*pando.UnitStatus, error) {
	c, err := net.DialTimeout("unix", path, askWait)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(clock.Now().Add(askWait)); err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte(words)); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(c)
	if err != nil {
		return nil, err
	}
	s := &pando.UnitStatus{}
	return s, json.Unmarshal(text, s)
}

// Server serves the control socket of a group.
type Server struct {
	listener net.Listener
	clock    pando.Clock
	answer   func(ctx context.Context, words string) []byte
	work     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	silent map[net.Conn]bool // connections without a request yet
}

// Listen serves a control socket until Close. It replaces the socket of a dead group. answer
// returns the answer to a request, or nil for no answer. Its ctx ends with the conversation.
func Listen(clock pando.Clock, path string,
	answer func(ctx context.Context, words string) []byte) (*Server, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := &Server{listener: l, clock: clock, answer: answer, silent: map[net.Conn]bool{}}
	s.work.Go(s.accept)
	return s, nil
}

// Close removes the socket. It closes connections without a request and waits for the answers to
// the other requests.
func (s *Server) Close() {
	s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.silent {
		c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.work.Go(func() {
			defer c.Close()
			s.serve(c)
		})
	}
}

// serve answers one request.
func (s *Server) serve(c net.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWait)
	defer cancel()
	// Connections of a unix socket support deadlines.
	_ = c.SetDeadline(s.clock.Now().Add(answerWait))
	words, ok := s.request(c)
	if !ok {
		return
	}
	if text := s.answer(ctx, words); text != nil {
		_, _ = c.Write(text) // an answer that the caller does not read is lost
	}
}

// request reads the request of a connection. Close interrupts it.
func (s *Server) request(c net.Conn) (words string, ok bool) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return "", false
	}
	s.silent[c] = true
	s.mu.Unlock()
	text := make([]byte, wordsBytesMax)
	n, err := c.Read(text)
	s.mu.Lock()
	delete(s.silent, c)
	s.mu.Unlock()
	return strings.TrimSpace(string(text[:n])), err == nil
}
