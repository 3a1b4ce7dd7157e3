package etcd

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"pando.run/pando/driver/clock"
)

// proposal is a raft message that proposes requests.
func proposal(t *testing.T, all ...*pb.InternalRaftRequest) []byte {
	t.Helper()
	m := raftpb.Message{Type: raftpb.MsgProp.Enum(), From: proto.Uint64(1), To: proto.Uint64(2)}
	for _, r := range all {
		data, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		m.Entries = append(m.Entries, &raftpb.Entry{Data: data})
	}
	b, err := proto.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func framed(all ...[]byte) (b []byte) {
	for _, m := range all {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(m))), m...)
	}
	return b
}

// messages are a revocation, and messages that always pass.
func messages(t *testing.T) (revocation []byte, others [][]byte) {
	t.Helper()
	revoke := &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: 7}}
	put := &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 300)}}
	beat, err := proto.Marshal(&raftpb.Message{Type: raftpb.MsgHeartbeat.Enum()})
	if err != nil {
		t.Fatal(err)
	}
	return proposal(t, revoke), [][]byte{beat, proposal(t, put), {}, proposal(t)}
}

// A stream passes every message, in pieces of any size. After a standstill of this process it drops
// the revocations for a while.
func TestAStreamDropsRevocationsAfterAStandstill(t *testing.T) {
	revocation, others := messages(t)
	all := framed(others[0], revocation, others[1], others[2], others[3])
	rest := framed(others...)
	for name, c := range map[string]struct {
		silent time.Duration // before the messages
		since  time.Duration // the end of that silence
		want   []byte
	}{
		"at work":                {time.Second, 0, all},
		"after a standstill":     {stillMin + time.Second, 0, rest},
		"soon after":             {stillMin + time.Second, afterStill / 2, rest},
		"long after":             {stillMin + time.Second, afterStill + time.Second, all},
		"between two heartbeats": {rafthttp.ConnReadTimeout / 3, 0, all},
	} {
		for _, piece := range []int{1, 7, 8, 9, 100, len(all)} {
			s := newStale(clock.Clock{})
			var out bytes.Buffer
			w := &messageStream{ResponseWriter: writer{&out}, stale: s}
			// The standstill is in the past, so that the test does not wait.
			s.began = s.began.Add(-time.Minute)
			s.wrote.Store(int64(time.Minute - c.since - c.silent))
			s.stoodStill(time.Minute - c.since)
			for at := c.since; at > time.Second; at -= time.Second { // heartbeats
				s.stoodStill(time.Minute - at)
			}
			for b := all; len(b) > 0; b = b[min(piece, len(b)):] {
				if n, err := w.Write(b[:min(piece, len(b))]); err != nil || n == 0 {
					t.Fatal(n, err)
				}
			}
			if !bytes.Equal(out.Bytes(), c.want) {
				t.Errorf("%s, pieces of %d: %d of %d bytes passed, want %d", name, piece, out.Len(),
					len(all), len(c.want))
			}
		}
	}
}

// writer is a response that is written to a buffer.
type writer struct{ *bytes.Buffer }

func (writer) Header() http.Header { return http.Header{} }
func (writer) WriteHeader(int)     {}

// A posted message passes, unless it is a revocation. Other paths pass as they are.
func TestAPostedRevocationIsDropped(t *testing.T) {
	revocation, others := messages(t)
	var got [][]byte
	h := newStale(clock.Clock{}).handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = append(got, b)
		w.WriteHeader(http.StatusAccepted)
	}))
	post := func(path string, b []byte) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(b)))
		return w.Code
	}
	for i, b := range others {
		if code := post(rafthttp.RaftPrefix, b); code != http.StatusAccepted || len(got) != i+1 ||
			!bytes.Equal(got[i], b) {
			t.Errorf("message %d: %d, %d passed", i, code, len(got))
		}
	}
	if code := post(rafthttp.RaftPrefix, revocation); code != http.StatusNoContent ||
		len(got) != len(others) {
		t.Errorf("a revocation: %d, %d passed", code, len(got))
	}
	if code := post(rafthttp.RaftSnapshotPrefix, revocation); code != http.StatusAccepted {
		t.Errorf("another path: %d", code)
	}
	if code := post(rafthttp.RaftPrefix, make([]byte, messageMax+1)); code != http.StatusBadRequest {
		t.Errorf("a message of %d bytes: %d", messageMax+1, code)
	}
}
