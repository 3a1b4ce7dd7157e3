package access

import (
	"context"
	"fmt"
	"pando.run/pando"
	"time"
)

// Bounds of the bills of a cluster. A tenant has at most 4 records of days, 5 of months and 11 of
// years, each of at most 2 KiB.
const (
	BillHoursKept  = 3 * 24 * time.Hour        // hour by hour
	BillDaysKept   = 100 * 24 * time.Hour      // day by day
	BillMonthsKept = 10 * 366 * 24 * time.Hour // month by month
)

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
	Tenant pando.Tenant       `json:"tenant"`
	By     BillPeriod         `json:"by"`
	From   time.Time          `json:"from"` // the start of the day, month or year, UTC
	Parts  map[int]pando.Work `json:"parts"`
}

// Key returns the key of the record.
func (b Bill) Key() pando.Key {
	return pando.MakeKey(pando.KindBill, string(b.Tenant), string(b.By), b.From.UTC().Format("2006-01-02"))
}

// Check returns nil if the record can be read, else the reason.
func (b Bill) Check() error {
	known := b.By == BillByHour || b.By == BillByDay || b.By == BillByMonth
	if !known || !b.From.Equal(b.By.start(b.From)) || len(b.Parts) > 31 {
		return fmt.Errorf("%w: a bill by %q from %s", pando.ErrInvalid, b.By, b.From)
	}
	return nil
}

// BillOf returns the record, without its parts, and the part that have an hour.
func BillOf(t pando.Tenant, by BillPeriod, hour time.Time) (b Bill, part int) {
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
	Tenant pando.Tenant // "": all
	Since  time.Time    // from the part with this moment on; zero: from the start of the month
	By     BillPeriod   // one line for each; "": one line for each tenant
}

// BillLine is one line of `pando bill`.
type BillLine struct {
	Tenant pando.Tenant `json:"tenant"`
	From   time.Time    `json:"from"`
	To     time.Time    `json:"to"` // its end, or the present
	pando.Work
}

// Biller keeps the bills of a cluster. The control room implements it.
type Biller interface {
	// Bills returns the lines that a query wants, by tenant and time.
	Bills(ctx context.Context, q BillQuery) ([]BillLine, error)
}
