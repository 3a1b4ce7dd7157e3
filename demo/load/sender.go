package load

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// outcome is the result of one request.
type outcome struct {
	failed                      string // the reason, or empty if it was answered
	dialled, broken, idleClosed int
}

// sender owns one connection at a time. It implements HTTP itself, because net/http's client
// repeats a request silently when a connection ends, and this package must count that.
type sender struct {
	config Config
	conn   net.Conn
	read   *bufio.Reader
}

func (s *sender) close() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// send makes one request, on a new connection if fresh.
func (s *sender) send(fresh bool) (o outcome) {
	if fresh {
		s.close()
	}
	deadline := time.Now().Add(s.config.Timeout)
	reused := s.conn != nil
	err := s.try(deadline, &o)
	if err != nil && reused && errors.Is(err, errIdleClosed) {
		o.idleClosed++
		err = s.try(deadline, &o)
	}
	var status statusError
	switch {
	case err == nil:
	case errors.As(err, &status):
		o.failed = status.Error()
	case errors.Is(err, os.ErrDeadlineExceeded):
		o.failed = "timeout"
		s.close()
	case errors.Is(err, errDial):
		o.failed = err.Error()
	default:
		o.failed, o.broken = "connection broken: "+cause(err), 1
		s.close()
	}
	return o
}

var (
	errDial = errors.New("dial")
	// errIdleClosed is an orderly end (FIN) before any byte of an answer. The server may close an idle
	// connection, and the FIN may cross the request on the wire. A reset never counts as one, because
	// a flow also gets a reset when it is steered to an instance without its connection.
	errIdleClosed = errors.New("closed before an answer")
)

type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

func (s *sender) try(deadline time.Time, o *outcome) error {
	if s.conn == nil {
		o.dialled++
		conn, err := (&net.Dialer{Deadline: deadline}).Dial("tcp", s.config.Address)
		if err != nil {
			return fmt.Errorf("%w: %s", errDial, cause(err))
		}
		s.conn, s.read = conn, bufio.NewReader(conn)
	}
	if err := s.conn.SetDeadline(deadline); err != nil {
		return err
	}
	_, wrote := fmt.Fprintf(s.conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", s.config.Path,
		s.config.Address)
	// An answer may be waiting although the write failed. The read distinguishes a close from a reset.
	if _, err := s.read.Peek(1); err != nil {
		if errors.Is(err, io.EOF) {
			s.close()
			return errIdleClosed
		}
		return errors.Join(err, wrote)
	}
	answer, err := http.ReadResponse(s.read, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.Close { // announced, so the connection is not broken
		s.close()
	}
	if answer.StatusCode/100 != 2 {
		return statusError(answer.StatusCode)
	}
	return nil
}

// cause returns the system's error without addresses. With addresses, every error would be a
// separate reason.
func cause(err error) string {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number.Error()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "timeout"
	}
	return err.Error()
}
