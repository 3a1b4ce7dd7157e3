package sockets

import (
	"encoding/binary"
	"time"
)

// Talk is an open TCP connection with the times of its last words.
type Talk struct {
	Socket
	Inode      uint32 // names the socket in /proc/PID/fd
	Sent       time.Duration
	Received   time.Duration // since the last data of each side
	Unanswered int           // probes and repetitions since the last answer
	Probed     bool          // the kernel probes its silent client
}

// Idle is the time since the last data of either side. A repetition is no new data.
func (t Talk) Idle() time.Duration {
	if t.Unanswered > 0 {
		return t.Received
	}
	return min(t.Sent, t.Received)
}

// Offsets in struct inet_diag_msg, and in struct tcp_info of the kernel's linux/tcp.h.
const (
	timerAt       = 2
	inodeAt       = 68
	retransmitsAt = 2
	probesAt      = 3
	sentAt        = 44
	receivedAt    = 52
	infoLen       = 60
)

const (
	withInfo       = 1 << (infoAttribute - 1)
	infoAttribute  = 2 // INET_DIAG_INFO
	keepAliveTimer = 2
)

// Talks lists the open TCP connections in the network namespace of the calling thread, with their
// times. It costs more than TCP.
func Talks() (out []Talk, err error) {
	var request [60]byte // struct inet_diag_req
	request[3] = withInfo
	binary.NativeEndian.PutUint32(request[52:], open)
	err = each(tcpOfBothFamilies, request[:], func(message []byte) error {
		t, err := parseTalk(message)
		if err != nil || !over(message) {
			out = append(out, t)
		}
		return err
	})
	return out, err
}

// parseTalk reads a struct inet_diag_msg and its attributes. Without a tcp_info the times are 0.
func parseTalk(m []byte) (t Talk, err error) {
	if t.Socket, err = parse(m); err != nil {
		return t, err
	}
	t.Inode = binary.NativeEndian.Uint32(m[inodeAt:])
	t.Probed = m[timerAt] == keepAliveTimer
	for rest := m[messageLen:]; len(rest) >= 4; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < 4 || size > len(rest) {
			break
		}
		if kind, info := binary.NativeEndian.Uint16(rest[2:]), rest[4:size]; kind == infoAttribute &&
			len(info) >= infoLen {
			since := func(at int) time.Duration {
				return time.Duration(binary.NativeEndian.Uint32(info[at:])) * time.Millisecond
			}
			t.Sent, t.Received = since(sentAt), since(receivedAt)
			t.Unanswered = max(int(info[retransmitsAt]), int(info[probesAt]))
		}
		rest = rest[min(len(rest), (size+3)&^3):]
	}
	return t, nil
}
