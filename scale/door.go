package scale

import (
	"fmt"
	"time"

	"pando.run/pando"
)

// Bounds of the asks of one service. Each answered ask is a durable record, so a service that asks
// without end would take the store from all others.
const (
	AsksPerSecond  = 500
	AsksBurst      = 2000 // in a row, before AsksPerSecond applies
	AsksWaitingMax = 1000 // without an answer
)

// askWait is the time between two asks at AsksPerSecond.
const askWait = time.Second / AsksPerSecond

// Door counts the recent asks of each service. Its zero value counts none. It forgets a service
// that has not asked for a minute, so the services that ask bound its size.
type Door struct {
	next  map[pando.ServiceKey]time.Time // when the bucket of a service is empty
	swept time.Time
}

// Admit returns why an ask may not enter, or nil. waiting counts the asks of its service without an
// answer. A refused ask costs no record and does not count.
func (d *Door) Admit(s pando.ServiceKey, waiting int, now time.Time) error {
	d.sweep(now)
	next := d.next[s]
	if next.Before(now) {
		next = now
	}
	next = next.Add(askWait)
	switch {
	case waiting >= AsksWaitingMax:
		return fmt.Errorf("ask %w: %d asks of %s wait for an answer, the most of a service; "+
			"ask again in a second", pando.ErrRefused, waiting, s)
	case next.Sub(now) > AsksBurst*askWait:
		return fmt.Errorf("ask %w: %s asks more than %d times a second; ask again in a second, "+
			"and less often", pando.ErrRefused, s, AsksPerSecond)
	}
	if d.next == nil {
		d.next = map[pando.ServiceKey]time.Time{}
	}
	d.next[s] = next
	return nil
}

// sweep forgets the services with an empty bucket, once a minute.
func (d *Door) sweep(now time.Time) {
	if now.Sub(d.swept) < time.Minute {
		return
	}
	d.swept = now
	for s, next := range d.next {
		if next.Before(now) {
			delete(d.next, s)
		}
	}
}
