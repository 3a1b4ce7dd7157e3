// Package session carries a command that an operator runs inside an instance: its input, output,
// signals and exit code, as frames on one connection.
//
// It starts nothing. driver/sandbox/process runs the command, and every host between only copies bytes.
package session

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"pando.run/pando"
)

// Protocol is the name of the protocol to which a request of a session upgrades its connection.
const Protocol = "pando-session"

// Kind is the kind of a frame.
type Kind byte

const (
	Input  Kind = iota + 1 // bytes for the command
	EOF                    // the end of its input
	Size                   // the size of its terminal
	Signal                 // a signal for the command
	Output                 // bytes of its standard output
	Errors                 // bytes of its standard error
	Exit                   // its end: the last frame
)

// BytesMax is the largest content of a frame.
const BytesMax = 64 << 10

// Window is the content of a frame of kind Size.
type Window struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// End is the content of a frame of kind Exit.
type End struct {
	Code int `json:"code"` // of a command that a signal ended: 128 and the signal's number
}

// Writer writes frames. Its methods may be called from any goroutine.
type Writer struct {
	mu sync.Mutex
	to io.Writer
}

// NewWriter returns a writer of frames.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Send writes one frame, or several if the content is longer than a frame.
func (w *Writer) Send(k Kind, content []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for first := true; first || len(content) > 0; first = false {
		part := content[:min(len(content), BytesMax)]
		content = content[len(part):]
		b := append(make([]byte, 0, 5+len(part)), byte(k))
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
		if _, err := w.to.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// SendJSON writes one frame with a value as JSON.
func (w *Writer) SendJSON(k Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Send(k, b)
}

// Stream returns a writer that sends all that it gets as frames of one kind.
func (w *Writer) Stream(k Kind) io.Writer { return stream{w, k} }

type stream struct {
	w *Writer
	k Kind
}

func (s stream) Write(b []byte) (int, error) {
	if err := s.w.Send(s.k, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Read reads one frame. After the last one it returns io.EOF.
func Read(from io.Reader) (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > BytesMax {
		return 0, nil, fmt.Errorf("a frame of %d bytes: %w: at most %d", size, pando.ErrTooLarge,
			BytesMax)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(from, b); err != nil {
		return 0, nil, errors.Join(io.ErrUnexpectedEOF, err)
	}
	return Kind(head[0]), b, nil
}

// lingerMax is how long a host waits for the caller to hang up after the last frame. A connection
// that closes with unread input can lose output that is on its way.
const lingerMax = 5 * time.Second

// Relay copies between the caller of a session and its command until one of them is gone. Then it
// closes both.
func Relay(caller, command io.ReadWriteCloser) {
	fromCaller, fromCommand := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = io.Copy(command, caller)
		close(fromCaller)
	}()
	go func() {
		_, _ = io.Copy(caller, command)
		close(fromCommand)
	}()
	select {
	case <-fromCaller:
	case <-fromCommand:
		// The output is on its way. Later input of the caller is for nothing.
		late := time.NewTimer(lingerMax)
		defer late.Stop()
		select {
		case <-fromCaller:
		case <-late.C:
		}
	}
	command.Close()
	caller.Close()
	<-fromCaller
	<-fromCommand
}

// Accept answers a request of a session with an upgrade and returns its connection.
func Accept(w http.ResponseWriter) (io.ReadWriteCloser, error) {
	conn, b, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over the connection of a session: %w", err)
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"+
		"Upgrade: "+Protocol+"\r\n\r\n")
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("begin a session: %w", err)
	}
	return accepted{b.Reader, conn}, nil
}

// accepted reads first the bytes that arrived with the request.
type accepted struct {
	r *bufio.Reader
	io.WriteCloser
}

func (a accepted) Read(b []byte) (int, error) { return a.r.Read(b) }

// Offer adds the headers to a request that ask for an upgrade.
func Offer(h http.Header) {
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", Protocol)
}

// Begun returns the connection of an answer with an upgrade.
func Begun(resp *http.Response) (io.ReadWriteCloser, error) {
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		resp.Body.Close()
		return nil, fmt.Errorf("%w: the answer to a session is %s: want an upgrade to %s",
			pando.ErrInvalid, resp.Status, Protocol)
	}
	return conn, nil
}
