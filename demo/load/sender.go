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

// timedOut is the reason of a request without an answer in time.
const timedOut = "timeout"

// outcome is the result of one request.
type outcome struct {
	failed                      string // the reason, or empty if it was answered
	at                          string // the server of the connection, if it is known
	dialled, broken, idleClosed int
}

// sender owns one connection at a time. It implements HTTP itself, because net/http's client
// repeats a request silently when a connection ends, and this package must count that.
type sender struct {
	config Config
	conn   net.Conn
	read   *bufio.Reader
	by     string // the server of the connection, by its last answer; "": none yet
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
		o.failed, o.at = timedOut, s.by
		s.close()
	case errors.Is(err, errDial):
		o.failed = err.Error()
	default:
		o.failed, o.at, o.broken = "connection broken: "+cause(err), s.by, 1
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
		conn, err := s.dial(deadline, o)
		if err != nil {
			return fmt.Errorf("%w: %s", errDial, cause(err))
		}
		s.conn, s.read, s.by = conn, bufio.NewReader(conn), ""
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
	s.by = answer.Header.Get("X-Served-By")
	if answer.Close { // announced, so the connection is not broken
		s.close()
	}
	if answer.StatusCode/100 != 2 {
		return statusError(answer.StatusCode)
	}
	return nil
}

// dialMax bounds one attempt to connect. A browser also tries again soon: no request was sent yet,
// and the next attempt has another port, which may lead to another server.
const dialMax = 250 * time.Millisecond

// dial opens a connection, with as many attempts as the time allows.
func (s *sender) dial(deadline time.Time, o *outcome) (net.Conn, error) {
	for {
		o.dialled++
		until := time.Now().Add(dialMax)
		if until.After(deadline) {
			until = deadline
		}
		conn, err := (&net.Dialer{Deadline: until}).Dial("tcp", s.config.Address)
		var late net.Error
		if err == nil || !errors.As(err, &late) || !late.Timeout() || !until.Before(deadline) {
			return conn, err
		}
	}
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
