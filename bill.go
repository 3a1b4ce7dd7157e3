package pando

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Bounds of the bills of a cluster. A tenant has at most 4 records of days, 5 of months and 11 of
// years, each of at most 2 KiB.
const (
	BillHoursKept  = 3 * 24 * time.Hour        // hour by hour
	BillDaysKept   = 100 * 24 * time.Hour      // day by day
	BillMonthsKept = 10 * 366 * 24 * time.Hour // month by month
	WorkLinesMax   = 64                        // of one batch
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
		return key(KindMark, decisionsMark)
	}
	return key(KindMark, string(m.Host))
}

// WorkBatch is a part of a host's work that bills do not have yet.
type WorkBatch struct {
	Journal string     `json:"journal"`
	Number  uint64     `json:"number"`
	Lines   []WorkLine `json:"lines"`          // none: there is nothing to bill
	More    bool       `json:"more,omitempty"` // another batch follows
}

// BillPeriod is the length of the parts of a bill.
type BillPeriod string

// A record for one day has hours, for one month days, and for one year months.
const (
	BillByHour  BillPeriod = "hour"
	BillByDay   BillPeriod = "day"
	BillByMonth BillPeriod = "month"
)

// Bill is the record of a tenant's work in one day, month or year, by its hours, days or months.
type Bill struct {
	Tenant Tenant       `json:"tenant"`
	By     BillPeriod   `json:"by"`
	From   time.Time    `json:"from"` // the start of the day, month or year, UTC
	Parts  map[int]Work `json:"parts"`
}

// Key returns the key of the record.
func (b Bill) Key() Key {
	return key(KindBill, string(b.Tenant), string(b.By), b.From.UTC().Format("2006-01-02"))
}

// Check returns nil if the record can be read, else the reason.
func (b Bill) Check() error {
	known := b.By == BillByHour || b.By == BillByDay || b.By == BillByMonth
	if !known || !b.From.Equal(b.By.start(b.From)) || len(b.Parts) > 31 {
		return fmt.Errorf("%w: a bill by %q from %s", ErrInvalid, b.By, b.From)
	}
	return nil
}

// BillOf returns the record, without its parts, and the part that have an hour.
func BillOf(t Tenant, by BillPeriod, hour time.Time) (b Bill, part int) {
	hour = hour.UTC()
	b = Bill{Tenant: t, By: by, From: by.start(hour)}
	switch by {
	case BillByHour:
		return b, hour.Hour()
	case BillByDay:
		return b, hour.Day()
	}
	return b, int(hour.Month())
}

// start returns the start of the record with a moment.
func (p BillPeriod) start(t time.Time) time.Time {
	y, m, d := t.UTC().Date()
	switch p {
	case BillByHour:
		return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	case BillByDay:
		return time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(y, time.January, 1, 0, 0, 0, 0, time.UTC)
}

// Span returns the start and the end of a part.
func (b Bill) Span(part int) (from, to time.Time) {
	switch b.By {
	case BillByHour:
		from = b.From.Add(time.Duration(part) * time.Hour)
		return from, from.Add(time.Hour)
	case BillByDay:
		from = b.From.AddDate(0, 0, part-1)
		return from, from.AddDate(0, 0, 1)
	}
	from = b.From.AddDate(0, part-1, 0)
	return from, from.AddDate(0, 1, 0)
}

// Kept returns how long records of these parts are kept after their end.
func (p BillPeriod) Kept() time.Duration {
	switch p {
	case BillByHour:
		return BillHoursKept
	case BillByDay:
		return BillDaysKept
	}
	return BillMonthsKept
}

// BillQuery chooses lines of bills.
type BillQuery struct {
	Tenant Tenant     // "": all
	Since  time.Time  // from the part with this moment on; zero: from the start of the month
	By     BillPeriod // one line for each; "": one line for each tenant
}

// BillLine is one line of `pando bill`.
type BillLine struct {
	Tenant Tenant    `json:"tenant"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"` // its end, or the present
	Work
}

// Biller keeps the bills of a cluster. The control room implements it.
type Biller interface {
	// Bills returns the lines that a query wants, by tenant and time.
	Bills(ctx context.Context, q BillQuery) ([]BillLine, error)
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
