package pando

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Work is the counted work of a tenant: its meters.
type Work struct {
	InstanceSeconds float64 `json:"instance_seconds,omitempty"` // from start to removal
	CPUSeconds      float64 `json:"cpu_seconds,omitempty"`
	// BytesIn and BytesOut count all packets of the links of instances, with their headers.
	BytesIn   uint64 `json:"bytes_in,omitempty"`
	BytesOut  uint64 `json:"bytes_out,omitempty"`
	Decisions uint64 `json:"decisions,omitempty"` // about its services
}

// Add returns the sum of two works.
func (w Work) Add(o Work) Work {
	return Work{w.InstanceSeconds + o.InstanceSeconds, w.CPUSeconds + o.CPUSeconds,
		w.BytesIn + o.BytesIn, w.BytesOut + o.BytesOut, w.Decisions + o.Decisions}
}

// Check returns nil if the work can be counted, else the reason.
func (w Work) Check() error {
	for _, v := range []float64{w.InstanceSeconds, w.CPUSeconds} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("%w: work of %g seconds", ErrInvalid, v)
		}
	}
	return nil
}

// WorkLine is the work of a tenant in one hour.
type WorkLine struct {
	Tenant Tenant    `json:"tenant"`
	Hour   time.Time `json:"hour"` // its start, UTC
	Work
}

// WorkMark is the last batch of a host that bills have. A batch is billed in the commit that writes
// its mark, so no batch counts twice. Decisions have a mark without a host.
type WorkMark struct {
	Host    HostName  `json:"host,omitempty"`
	Journal string    `json:"journal,omitempty"` // a book that was lost has another one
	Number  uint64    `json:"number"`            // of decisions: a store revision
	At      time.Time `json:"at"`
}

// decisionsMark replaces the host in the key of the mark of decisions. No host has this name.
const decisionsMark = "_decisions"

// Key returns the key of the mark's record.
func (m WorkMark) Key() Key {
	if m.Host == "" {
		return MakeKey(KindMark, decisionsMark)
	}
	return MakeKey(KindMark, string(m.Host))
}

// WorkLinesMax bounds the lines of one batch.
const WorkLinesMax = 64

// WorkBatch is a part of a host's work that bills do not have yet.
type WorkBatch struct {
	Journal string     `json:"journal"`
	Number  uint64     `json:"number"`
	Lines   []WorkLine `json:"lines"`          // none: there is nothing to bill
	More    bool       `json:"more,omitempty"` // another batch follows
}

// WorkPeers asks hosts for their work.
type WorkPeers interface {
	// Work returns the work of a host after a mark. The same mark returns the same batch, until a
	// later mark follows.
	Work(ctx context.Context, h Host, after WorkMark) (WorkBatch, error)
}

// WorkAgent is the answering side of WorkPeers.
type WorkAgent interface {
	// Work returns the work of this host after a mark.
	Work(ctx context.Context, after WorkMark) (WorkBatch, error)
}

// Books keeps the book of a host's work. driver/store/book implements it.
type Books interface {
	// Load returns the book, or nil if there is none.
	Load() ([]byte, error)
	// Save replaces the book. It is durable afterwards.
	Save([]byte) error
}
