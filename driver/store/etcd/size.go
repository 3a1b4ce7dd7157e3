package etcd

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pando.run/pando"
)

const (
	quotaBytes       = 512 << 20       // limit of the database file, unless the configuration has one
	defragmentBytes  = 64 << 20        // free space in the file that is worth a pause
	defragmentQuiet  = 5 * time.Second // without a write before the pause
	defragmentRest   = time.Hour       // between two pauses of a store with room
	defragmentHaste  = time.Minute     // between two pauses of a store without
	historyRevisions = 20000           // kept for watches that resume
)

// sizes describe the store at one look.
type sizes struct {
	revision, compacted int64         // the newest one, and the oldest one that can be read
	file, used, quota   int64         // bytes of the file, of its pages in use, and of its limit
	alarmed             bool          // etcd refuses writes: the file has reached its limit
	quiet               time.Duration // since the last write
	rested              time.Duration // since the last pause for a defragmentation
}

// relief lists the next steps for the size of a store.
type relief struct {
	defragment bool // rewrite the file without its free pages, which pauses the store
	disarm     bool // let etcd accept writes again
	full       bool // live records fill the store: refuse those that make more
}

// relieve decides the next steps after a compaction. full is the present state. A store becomes
// full before it reaches its limit, so that control can still write what removes a service.
func relieve(s sizes, full bool) (r relief) {
	r.full = s.used >= s.quota*7/8 || full && s.used >= s.quota*3/4
	free := s.file - s.used
	switch {
	case s.alarmed && s.used >= s.quota*15/16: // there is no room to make
	case s.alarmed:
		r.defragment, r.disarm = free >= s.quota/16, true
	case free < min(defragmentBytes, s.quota/4):
	case s.file >= s.quota*3/4:
		r.defragment = s.rested >= defragmentHaste
	default:
		r.defragment = s.quiet >= defragmentQuiet && s.rested >= defragmentRest
	}
	return r
}

// forget returns the revision before which the history goes, or 0. A watch that is up to date never
// notices a compaction. A watch that is further behind begins with a snapshot.
func forget(s sizes) int64 {
	keep := history(s)
	if s.alarmed {
		keep = 0
	}
	if s.revision-s.compacted <= 2*keep || s.revision == s.compacted {
		return 0
	}
	return s.revision - keep
}

// history returns the number of revisions to keep. It falls as the store fills up, because a burst
// of large records fills the store with fewer revisions.
func history(s sizes) int64 {
	switch {
	case s.used < s.quota/4:
		return historyRevisions
	case s.used < s.quota/2:
		return historyRevisions / 10
	case s.used < s.quota*3/4:
		return historyRevisions / 100
	}
	return 0
}

// shape measures and changes the size of a store.
type shape struct {
	look       func() sizes // without quiet and rested
	compact    func(ctx context.Context, to int64) error
	defragment func() error
	disarm     func(ctx context.Context) error
}

// shapeOf returns the shape of a running server. It asks etcd in this process: a client would write
// the question about alarms to the raft log. In-process, the client's Defragment dereferences a nil
// pointer (etcd 3.7.3).
func (s *Server) shapeOf(c *clientv3.Client, quota int64) shape {
	server := s.etcd.Server
	return shape{
		look: func() sizes {
			kv, file := server.KV(), server.Backend()
			return sizes{
				revision: kv.Rev(), compacted: kv.FirstRev(), file: file.Size(), used: file.SizeInUse(),
				quota: quota, alarmed: len(server.Alarms()) > 0,
			}
		},
		compact: func(ctx context.Context, to int64) error {
			_, err := c.Compact(ctx, to, clientv3.WithCompactPhysical())
			if err != nil && !strings.Contains(err.Error(), "compacted") {
				return fmt.Errorf("compact: %w", err)
			}
			return nil
		},
		defragment: server.Backend().Defrag,
		disarm: func(ctx context.Context) error {
			_, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{})
			return err
		},
	}
}

// Size returns the sizes of this server's database, or the last known ones of a foreign etcd. It
// costs no request.
func (s *Server) Size() pando.StoreFigures {
	if s.foreign != nil {
		return s.foreign.figures()
	}
	file := s.etcd.Server.Backend()
	return pando.StoreFigures{
		FileBytes: file.Size(), UsedBytes: file.SizeInUse(),
		LimitBytes: s.etcd.Config().QuotaBackendBytes,
	}
}

// crowdedOf returns a check for bursts: the bytes in use if they are near the limit, or 0.
func (s *Server) crowdedOf(quota int64) func() int64 {
	file := s.etcd.Server.Backend()
	return func() int64 {
		if used := file.SizeInUse(); used >= quota*7/8 {
			return used
		}
		return 0
	}
}

// slimmer keeps the size of a store within its limit.
type slimmer struct {
	shape
	g           *guard
	revision    int64
	written     time.Time // when revision changed
	paused      time.Time // of the last defragmentation
	defragments int
}

// step looks at the store once and does what forget and relieve say.
func (m *slimmer) step(ctx context.Context, now time.Time) error {
	s := m.look()
	if s.revision != m.revision {
		m.revision, m.written = s.revision, now
	}
	if to := forget(s); to != 0 {
		if err := m.compact(ctx, to); err != nil {
			return err
		}
		s = m.look()
	}
	s.quiet, s.rested = now.Sub(m.written), now.Sub(m.paused)
	r := relieve(s, m.g.full.Load() != 0)
	m.g.fill(r.full, s)
	if r.defragment {
		m.defragments++
		err := m.defragment()
		if m.paused = now; err != nil {
			return fmt.Errorf("defragment: %w", err)
		}
	}
	if !r.disarm {
		return nil
	}
	m.g.log.Info("the store had reached its limit and made room", "dir", m.g.dir)
	return m.disarm(ctx)
}

// fill notes whether live records fill the store.
func (g *guard) fill(full bool, s sizes) {
	used := int64(0)
	if full {
		used = s.used
	}
	switch was := g.full.Swap(used); {
	case full && was == 0:
		g.log.Error("the store is full of live records: it takes no new services",
			"used_bytes", s.used, "limit_bytes", s.quota, "next", "pando rm SERVICE")
	case !full && was != 0:
		g.log.Info("the store takes new services again", "used_bytes", s.used)
	}
}

// mayAdd returns why a transaction may not add records of these kinds, or nil. Records that control
// needs to remove a service always fit.
func (g *guard) mayAdd(adds bool) error {
	if g == nil || !adds {
		return nil
	}
	used := g.full.Load()
	if used == 0 && g.crowded != nil { // a burst between two looks
		used = g.crowded()
	}
	if used == 0 {
		return nil
	}
	return fmt.Errorf("%w: its live records take %d MiB: remove services with `pando rm`, and it "+
		"takes new ones again; traffic is not affected", pando.ErrStoreFull, used>>20)
}

// adds reports whether a record makes the store fuller for good: a revision of a service, or a new
// ask.
func adds(k pando.Key, asked func() bool) bool {
	return k.Kind() == pando.KindRevision || k.Kind() == pando.KindIntent && asked()
}
