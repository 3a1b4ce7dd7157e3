package etcd

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"pando.run/pando"
)

const (
	// A server writes to each of the others at least every 1.7 s (rafthttp.ConnReadTimeout / 3).
	stillMin = 3 * time.Second
	// afterStill is the time for which messages may have waited for a new connection.
	afterStill = 10 * time.Second
	// messageMax is more than a proposal has: etcd refuses requests of over 1.5 MiB, and Pando sets no
	// other limit.
	messageMax = 16 << 20
	// frameLength is the size of the length before a message of a stream.
	frameLength = 8
)

// stale drops the revocations of a server that stood still.
//
// The leader of etcd revokes the leases that ended by its own clock. A leader that was paused for
// longer than a lease finds all of them ended when it runs again. By then another server leads and
// renews them. etcd trusts a leader with a ticker that runs, so the revocations reach raft
// (etcdserver.ensureLeadership). If the leader of before learns of the new one just then, raft
// passes the revocations on to the new one, and living hosts lose their leases.
//
// A client may also revoke a lease by a server that does not lead. If that is dropped, the lease
// ends by itself.
type stale struct {
	clock       pando.Clock
	began       time.Time
	wrote, woke atomic.Int64 // nanoseconds since began; 0: never
}

func newStale(clock pando.Clock) *stale { return &stale{clock: clock, began: clock.Now()} }

// handler filters the streams to the other servers, and the messages that those post.
func (s *stale) handler(next http.Handler) http.Handler {
	messages := rafthttp.RaftStreamPrefix + "/message/"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, messages):
			next.ServeHTTP(&messageStream{ResponseWriter: w, stale: s}, r)
		case r.URL.Path == rafthttp.RaftPrefix && r.Method == http.MethodPost:
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, messageMax))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			// A server posts a message if it has no stream. Whether it stood still is not in the message.
			if revokes(body) {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// stoodStill reports whether this process stood still a short time ago. Each write calls it.
func (s *stale) stoodStill(now time.Duration) bool {
	last := time.Duration(s.wrote.Swap(int64(now)))
	if last > 0 && now-last > stillMin {
		s.woke.Store(int64(now))
	}
	woke := time.Duration(s.woke.Load())
	return woke > 0 && now-woke < afterStill
}

// messageStream is a stream of raft messages to another server. Each has its length before it.
type messageStream struct {
	http.ResponseWriter
	stale *stale
	part  bytes.Buffer // of a message, with its length before it
}

// Write passes whole messages on.
func (m *messageStream) Write(b []byte) (int, error) {
	still := m.stale.stoodStill(m.stale.clock.Now().Sub(m.stale.began))
	m.part.Write(b)
	for {
		frame, ok := m.frame()
		if !ok {
			return len(b), nil
		}
		if !still || !revokes(frame[frameLength:]) {
			if _, err := m.ResponseWriter.Write(frame); err != nil {
				return 0, err
			}
		}
		m.part.Next(len(frame))
	}
}

// frame returns the first message, with its length, once it is whole.
func (m *messageStream) frame() ([]byte, bool) {
	b := m.part.Bytes()
	if len(b) < frameLength || binary.BigEndian.Uint64(b) > uint64(len(b)-frameLength) {
		return nil, false
	}
	return b[:frameLength+int(binary.BigEndian.Uint64(b))], true
}

// Flush implements http.Flusher, which rafthttp needs.
func (m *messageStream) Flush() { m.ResponseWriter.(http.Flusher).Flush() }

// revokes reports whether a raft message is a proposal that revokes a lease.
func revokes(message []byte) bool {
	var m raftpb.Message
	if proto.Unmarshal(message, &m) != nil || m.GetType() != raftpb.MsgProp {
		return false
	}
	for _, e := range m.GetEntries() {
		var r pb.InternalRaftRequest
		if proto.Unmarshal(e.GetData(), &r) == nil && r.GetLeaseRevoke() != nil {
			return true
		}
	}
	return false
}
