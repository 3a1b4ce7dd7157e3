package agent

import (
	"context"
	"maps"
	"sync/atomic"

	"pando.run/pando"
	"pando.run/pando/agent/turn"
	"pando.run/pando/world"
)

// askReads reads the asks of services that former agents wrote for instances of this host. The asks
// of a service grow with its instances, so all instances that this agent took over share one read.
type askReads struct {
	a    *Agent
	turn turn.Turn
	seq  atomic.Uint64
	// began is the place in seq at which the last whole read of a service began. The turn guards it.
	began map[pando.ServiceKey]uint64
}

func newAskReads(a *Agent) *askReads {
	return &askReads{a: a, turn: turn.New(), began: map[pando.ServiceKey]uint64{}}
}

// read brings the asks that end with instances of this host, unless a read of their service began
// after a place in seq.
func (q *askReads) read(ctx context.Context, s pando.ServiceKey, after uint64) error {
	if err := q.turn.Take(ctx); err != nil {
		return err
	}
	defer q.turn.Give()
	if q.began[s] > after {
		return nil
	}
	q.forget()
	began := q.seq.Add(1)
	here := func(i pando.Intent) bool { r := q.a.crews.runners[i.Instance]; return r != nil && r.EndsWith(i) }
	if err := q.a.records.ReadIntents(ctx, pando.Intent{Service: s}.Key(), here); err != nil {
		return err
	}
	q.began[s] = began
	return nil
}

// forget drops the services without an instance here. The caller holds the turn.
func (q *askReads) forget() {
	q.a.records.Read(func(*world.World) {
		maps.DeleteFunc(q.began, func(s pando.ServiceKey, _ uint64) bool { return len(q.a.crews.of[s]) == 0 })
	})
}
