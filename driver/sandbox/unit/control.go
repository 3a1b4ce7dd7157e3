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
func Ask(path, words string) (*pando.UnitStatus, error) {
	c, err := net.DialTimeout("unix", path, askWait)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer until(c, askWait)()
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

// until bounds the use of a connection. The runtime compares a deadline with its own clock, which may
// differ from a pando.Clock.
func until(c net.Conn, most time.Duration) (done func()) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	// Connections of a unix socket support deadlines.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return func() {
		stop()
		cancel()
	}
}

// Server serves the control socket of a group.
type Server struct {
	listener net.Listener
	answer   func(ctx context.Context, words string) []byte
	work     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	silent map[net.Conn]bool // connections without a request yet
}

// Listen serves a control socket until Close. It replaces the socket of a dead group. answer
// returns the answer to a request, or nil for no answer. Its ctx ends with the conversation.
func Listen(path string,
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
	s := &Server{listener: l, answer: answer, silent: map[net.Conn]bool{}}
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
	defer until(c, answerWait)()
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
