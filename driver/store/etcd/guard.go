package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pando.run/pando"
	"pando.run/pando/world"
)

// The guard keeps room on the disk for one more write-ahead segment. etcd ends its whole process
// when a write fails. Once it could not allocate its next segment, every later write fails.
const (
	segmentBytes = 16 << 20               // one write-ahead file; etcd allocates one ahead
	ballastBytes = segmentBytes + 8<<20   // freed when a server starts on a full disk
	closeBytes   = segmentBytes + 16<<20  // with less free space, writes are refused
	openBytes    = closeBytes + 8<<20     // with this free space, writes are accepted again
	aheadBytes   = 8 << 20                // of the database file, allocated before bbolt needs them
	lookInterval = 200 * time.Millisecond // between two checks of an otherwise idle store
)

// guard refuses writes while the server's disk has no room. A nil guard accepts every write.
type guard struct {
	dir    string
	log    *slog.Logger
	closed atomic.Bool
	full   atomic.Int64 // bytes of live records that fill the store, or 0 if there is room
	// crowded returns the bytes in use if a burst has brought them near the limit. Nil: unknown.
	crowded func() int64
	leader  func(context.Context) error // waits for the leading server; nil: a single server
}

// check reads the free space of the disk (a system call of 1 µs). It returns the reason to refuse a
// write, or nil.
func (g *guard) check() error {
	if g == nil {
		return nil
	}
	free, err := freeBytes(g.dir)
	if err != nil {
		return nil // unknown free space; the write itself reports a full disk
	}
	limit := int64(closeBytes)
	if g.closed.Load() {
		limit = openBytes // a margin: at the edge, every write would flip the guard
	}
	full := free < limit
	if was := g.closed.Swap(full); was != full {
		if full {
			g.log.Error("the store refuses writes: its disk is full", "dir", g.dir, "free_bytes", free,
				"needed_bytes", int64(openBytes))
		} else {
			g.log.Info("the store takes writes again", "dir", g.dir, "free_bytes", free)
		}
	}
	if !full {
		return nil
	}
	return fmt.Errorf("%w: %s has %d MiB free and needs %d: make room on that disk, and writes "+
		"continue; traffic is not affected",
		pando.ErrStoreFull, g.dir, free>>20, int64(openBytes)>>20)
}

// intercept applies the guard to calls through the server's doors. Removals and reads pass.
func (g *guard) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	if writes(req) {
		if err := errors.Join(g.check(), g.mayAdd(requestAdds(req))); err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		g.awaitLeader(ctx)
	}
	return handle(ctx, req)
}

// awaitLeader waits until the leading server has answered this one, for at most the time of ctx. A
// lost leader loses each write that is sent to it, and the caller waits for 5 s. The write itself
// reports an error.
func (g *guard) awaitLeader(ctx context.Context) {
	if g != nil && g.leader != nil {
		_ = g.leader(ctx)
	}
}

func writes(req any) bool {
	switch r := req.(type) {
	case *pb.PutRequest, *pb.LeaseGrantRequest:
		return true
	case *pb.TxnRequest:
		var puts []pando.Key
		deletes := 0
		for _, op := range r.Success {
			if put := op.GetRequestPut(); put != nil {
				puts = append(puts, pando.Key(put.Key))
			} else if op.GetRequestDeleteRange() != nil {
				deletes++
			}
		}
		return !removes(deletes, puts)
	}
	return false
}

// removes reports whether a transaction passes on a full disk: it writes nothing, or it deletes
// records and writes the decision and the remaining endpoints beside. A full disk would keep the
// records that fill it otherwise. The number of records bounds such transactions.
func removes(deletes int, puts []pando.Key) bool {
	for _, k := range puts {
		if deletes == 0 || k.Kind() != pando.KindDecision && k.Kind() != pando.KindEndpoints {
			return false
		}
	}
	return true
}

// requestAdds reports whether a call of another process adds a record for good.
func requestAdds(req any) bool {
	r, ok := req.(*pb.TxnRequest)
	if !ok {
		return false
	}
	for _, op := range r.Success {
		put := op.GetRequestPut()
		if put != nil && adds(pando.Key(put.Key), func() bool {
			var i pando.Intent
			err := world.Decode(pando.Record{Key: pando.Key(put.Key), Value: put.Value}, &i)
			return err != nil || i.State == pando.IntentAsked
		}) {
			return true
		}
	}
	return false
}

// watch prepares the store for a full disk, and keeps its size within the limit, until ctx ends. It
// lays the ballast while there is room and allocates the database's next pages.
func (g *guard) watch(ctx context.Context, size shape) {
	t := time.NewTicker(lookInterval)
	defer t.Stop()
	m := &slimmer{shape: size, g: g}
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return
		case now = <-t.C:
		}
		if g.check() == nil {
			g.layBallast()
		}
		if err := g.allocateAhead(); err != nil && !errors.Is(err, unix.ENOSPC) && ctx.Err() == nil {
			g.log.Warn("allocate the store's next pages", "error", err)
		}
		if err := m.step(ctx, now); err != nil && ctx.Err() == nil {
			g.log.Warn("keep the store's size within its limit", "error", err)
		}
	}
}

func (g *guard) ballast() string { return filepath.Join(g.dir, "ballast") }

// layBallast reserves space that a start on a full disk can free. It lays the ballast only if the
// guard stays open afterwards.
func (g *guard) layBallast() {
	if st, err := os.Stat(g.ballast()); err == nil && st.Size() == ballastBytes {
		return
	}
	if free, err := freeBytes(g.dir); err != nil || free < openBytes+ballastBytes {
		return
	}
	f, err := os.OpenFile(g.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, ballastBytes), f.Close())
	}
	if err != nil {
		g.dropBallast()
		g.log.Warn("lay the store's ballast", "file", g.ballast(), "error", err)
	}
}

func (g *guard) dropBallast() { _ = os.Remove(g.ballast()) }

// allocateAhead allocates blocks for the sparse parts of the database file and for aheadBytes past
// its end. bbolt's next commit then finds its pages even on a full disk.
func (g *guard) allocateAhead() error {
	f, err := os.OpenFile(filepath.Join(g.dir, "member", "snap", "db"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if want := st.Size + aheadBytes; st.Blocks*512 < want {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, want)
	}
	return nil
}

// freeBytes returns the free bytes on the disk of dir, without the blocks reserved for root.
func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}
