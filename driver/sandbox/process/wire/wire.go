// Package wire has what a driver and its shims say to each other: requests, replies, and the values in
// them. Each side trusts the other; a message crosses the socket of one sandbox.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Request is a driver's request to a shim, one at a time per connection, each with one reply.
//
// The reply to hold carries the listener of the instance's API. The events follow it, past ones
// first. If the program was only loaded, the driver first sends go, which has no reply.
//
// A hold with a program that has the network of the host carries the descriptor of that network.
type Request struct {
	// Verb is hold, go, ping, notify, signal, renew, configure, kill, pause, describe, exec or
	// session.
	Verb string   `json:"verb"`
	Run  *Program `json:"run,omitempty"`
	// The program waits before its first instruction for a message go.
	Load bool `json:"load,omitempty"`
	// Thaw makes the sandbox ready for a frozen program. Its go has the program's PID.
	Thaw    bool               `json:"thaw,omitempty"`
	PID     int                `json:"pid,omitempty"`
	Signal  int                `json:"signal,omitempty"`
	Command []string           `json:"command,omitempty"`
	Session *pando.SessionSpec `json:"session,omitempty"`
	Secrets map[string][]byte  `json:"secrets,omitempty"`
	Signals map[string]string  `json:"signals,omitempty"` // by the name of a secret
	Config  *pando.ConfigFile  `json:"config,omitempty"`
	Install bool               `json:"install,omitempty"` // the staged config of this name
}

// EmptyCode is the code of a reply to hold if no program ever started in the sandbox. From then on
// none will.
const EmptyCode = 1

// OutputBytesMax is the kept length of a command's output.
const OutputBytesMax = 4096

// Reply answers a request, or carries an event.
type Reply struct {
	Error  string              `json:"error,omitempty"`
	Code   int                 `json:"code,omitempty"`
	Output []byte              `json:"output,omitempty"`
	Names  []string            `json:"names,omitempty"` // of renewed secrets or configs
	Event  *pando.SandboxEvent `json:"event,omitempty"`
	// Refused is the answer of the check of a config, as the cause of Error.
	Refused *pando.CheckFailed `json:"refused,omitempty"`
	// Frozen describes the program, or the sandbox for a frozen one.
	Frozen *Frozen `json:"frozen,omitempty"`
}

// Err returns the error of a reply that has one.
func (r Reply) Err() error {
	if r.Refused != nil {
		return fmt.Errorf("the config %s is refused: %w", r.Refused.Config, r.Refused)
	}
	return errors.New(r.Error)
}

// messageBytesMax bounds a message in either direction. A start has the environment of a record (at
// most 1.5 MiB), secrets and configs (together 1.7 MiB in base64).
const messageBytesMax = 4 << 20

// Send writes one message, with the descriptor fd unless it is negative. It writes the whole
// message or returns an error: the kernel takes no more than the buffer of the socket with the
// descriptor, and the rest follows once the reader has made room.
func Send(c *net.UnixConn, v any, fd int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > messageBytesMax {
		return fmt.Errorf("%w: a message of %d bytes to or from a shim, which takes %d: the program's "+
			"environment, configs and secrets are too long together", pando.ErrTooLarge, len(b),
			messageBytesMax)
	}
	b = append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	if fd >= 0 {
		n, _, err := c.WriteMsgUnix(b, unix.UnixRights(fd), nil)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	_, err = c.Write(b)
	return err
}

// Receive reads one message, and its descriptor if it has one.
func Receive(c *net.UnixConn, v any) (*os.File, error) {
	head, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(head, oob)
	if err != nil {
		return nil, err
	}
	file := descriptorIn(oob[:oobn])
	if err = receiveBody(c, head, n, v); err != nil && file != nil {
		file.Close()
		file = nil
	}
	return file, err
}

// receiveBody reads a message of which the first n bytes have come.
func receiveBody(c *net.UnixConn, head []byte, n int, v any) error {
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head)
	if size > messageBytesMax {
		return fmt.Errorf("a message of %d bytes: %w", size, pando.ErrTooLarge)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// descriptorIn returns the descriptor that came with the first bytes of a message, or nil.
func descriptorIn(oob []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "from shim")
}

// ShimRole is the argument before that of ShimMain.
const ShimRole = "shim"
