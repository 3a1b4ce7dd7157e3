package process

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// request is a driver's request to a shim, one at a time per connection, each with one reply.
//
// The reply to hold carries the listener of the instance's API. The events follow it, past ones
// first. If the program was only loaded, the driver first sends go, which has no reply.
//
// A hold with a program that has the network of the host carries the descriptor of that network.
type request struct {
	// Verb is hold, go, ping, notify, signal, renew, configure, kill, pause, describe, exec or
	// session.
	Verb string   `json:"verb"`
	Run  *program `json:"run,omitempty"`
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

// program describes the program that a shim starts.
type program struct {
	Instance pando.InstanceID   `json:"instance"`
	Service  pando.ServiceKey   `json:"service"`
	Hostname string             `json:"hostname"`
	Address  netip.Addr         `json:"address,omitzero"` // of the instance, for its own name
	Argv     []string           `json:"argv"`
	Env      []string           `json:"env"`
	Dir      string             `json:"dir"`
	UID      uint32             `json:"uid"`
	GID      uint32             `json:"gid"`
	Groups   []uint32           `json:"groups,omitempty"` // beside GID
	Layers   []string           `json:"layers,omitempty"` // of its image, the highest first
	LogDir   string             `json:"log_dir"`
	Cgroup   pando.CgroupEntry  `json:"cgroup"`
	VIPs     []netip.Addr       `json:"vips"`
	Idle     bool               `json:"idle,omitempty"` // it starts nothing: sessions alone do
	Init     bool               `json:"init,omitempty"` // the shim stays PID 1
	Show     []shown            `json:"show,omitempty"`
	Volumes  []mounted          `json:"volumes,omitempty"`
	Tmpfs    []pando.Tmpfs      `json:"tmpfs,omitempty"`
	Bundle   *bundled           `json:"bundle,omitempty"`
	Secrets  map[string][]byte  `json:"secrets,omitempty"`
	Configs  []pando.ConfigFile `json:"configs,omitempty"`
	Hosts    map[string]string  `json:"hosts,omitempty"` // for /etc/hosts
	ReadOnly bool               `json:"read_only,omitempty"`
	Open     bool               `json:"open,omitempty"` // no filter of system calls
	Devices  []pando.Device     `json:"devices,omitempty"`
	// Runtime is the program that starts it, instead of the shim: a runtime of OCI. "": the shim.
	Runtime string `json:"runtime,omitempty"`
	HostNet bool   `json:"host_net,omitempty"` // of the descriptor that comes with it
	// Users is the range of its user namespace, in which UID, GID and Groups are. Nil: none.
	Users *users `json:"users,omitempty"`
	// Limits are bounds of each process, Sysctls are settings of the sandbox's kernel.
	Limits  map[string]string `json:"limits,omitempty"`
	Sysctls map[string]string `json:"sysctls,omitempty"`

	owners []uint32 // large ids of the image's files
}

// emptyCode is the code of a reply to hold if no program ever started in the sandbox. From then on
// none will.
const emptyCode = 1

// reply answers a request, or carries an event.
type reply struct {
	Error  string              `json:"error,omitempty"`
	Code   int                 `json:"code,omitempty"`
	Output []byte              `json:"output,omitempty"`
	Names  []string            `json:"names,omitempty"` // of renewed secrets or configs
	Event  *pando.SandboxEvent `json:"event,omitempty"`
	// Refused is the answer of the check of a config, as the cause of Error.
	Refused *pando.CheckFailed `json:"refused,omitempty"`
	// Frozen describes the program, or the sandbox for a frozen one.
	Frozen *frozen `json:"frozen,omitempty"`
}

// err returns the error of a reply that has one.
func (r reply) err() error {
	if r.Refused != nil {
		return fmt.Errorf("the config %s is refused: %w", r.Refused.Config, r.Refused)
	}
	return errors.New(r.Error)
}

// messageBytesMax bounds a message in either direction. A start has the environment of a record (at
// most 1.5 MiB), secrets and configs (together 1.7 MiB in base64).
const messageBytesMax = 4 << 20

// send writes one message, with the descriptor fd unless it is negative. It writes the whole
// message or returns an error: the kernel takes no more than the buffer of the socket with the
// descriptor, and the rest follows once the reader has made room.
func send(c *net.UnixConn, v any, fd int) error {
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

// receive reads one message, and its descriptor if it has one.
func receive(c *net.UnixConn, v any) (*os.File, error) {
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
