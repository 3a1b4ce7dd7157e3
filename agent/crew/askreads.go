package crew

import (
	"context"
	"maps"
	"sync/atomic"

	"pando.run/pando"
	"pando.run/pando/agent/turn"
	"pando.run/pando/world"
)

// AskReads reads the asks of services that former agents wrote for instances of this host. The asks
// of a service grow with its instances, so all instances that this agent took over share one read.
type AskReads struct {
	crews *Crews
	turn  turn.Turn
	seq   atomic.Uint64
	// began is the place in seq at which the last whole read of a service began. The turn guards it.
	began map[pando.ServiceKey]uint64
}

// NewAskReads returns the reads for the instances of a host.
func NewAskReads(c *Crews) *AskReads {
	return &AskReads{crews: c, turn: turn.New(), began: map[pando.ServiceKey]uint64{}}
}

// Read brings the asks that end with instances of this host, unless a read of their service began
// after a place in seq.
func (q *AskReads) Read(ctx context.Context, s pando.ServiceKey, after uint64) error {
	if err := q.turn.Take(ctx); err != nil {
		return err
	}
	defer q.turn.Give()
	if q.began[s] > after {
		return nil
	}
	q.forget()
	began := q.seq.Add(1)
	here := func(i pando.Intent) bool { r := q.crews.ByName[i.Instance]; return r != nil && r.EndsWith(i) }
	if err := q.crews.records.ReadIntents(ctx, pando.Intent{Service: s}.Key(), here); err != nil {
		return err
	}
	q.began[s] = began
	return nil
}

// forget drops the services without an instance here, in a turn.
func (q *AskReads) forget() {
	q.crews.records.Read(func(*world.World) {
		maps.DeleteFunc(q.began, func(s pando.ServiceKey, _ uint64) bool { return len(q.crews.Of[s]) == 0 })
	})
}

// Place returns the number of reads that have begun, with a new instance counted as one.
func (q *AskReads) Place() uint64 { return q.seq.Add(1) }
