package supply

import (
	"context"
	"sync"

	"pando.run/pando"
	"pando.run/pando/access/turns"
)

// pullTurns is how many images a host brings at once.
var pullTurns = turns.Bound{Total: 8, Each: 4, Reserve: 2}

// pulls brings images for the instances of a host. The instances of one tenant that want one image
// share a pull. It ends once none of them wants it any more.
type pulls struct {
	turns *turns.Queue[pando.Tenant]

	mu      sync.Mutex
	running map[pullKey]*pull
}

type pullKey struct {
	tenant            pando.Tenant
	reference, digest string
	inside            bool
}

// pull is one pull on its way. The lock of pulls guards what is not a channel.
type pull struct {
	cancel context.CancelFunc
	done   chan struct{} // closed at its end
	err    error
	what   string                // it waits for; "": it moves
	owners map[*wanting]struct{} // that still want it
}

// wanting is an instance that wants an image.
type wanting struct{ tell func(what string) }

func newPulls() *pulls {
	return &pulls{turns: turns.New[pando.Tenant](pullTurns), running: map[pullKey]*pull{}}
}

// bring brings an image for an owner, who wants it until ctx ends. tell gets what the pull waits
// for, and "" once it waits no more.
func (p *pulls) bring(
	ctx context.Context, of pando.Tenant, i pando.Image, tell func(what string),
	do func(context.Context) error,
) error {
	key := pullKey{of, i.Reference, i.Digest, i.Inside}
	me := &wanting{tell}
	p.mu.Lock()
	l := p.running[key]
	if l == nil {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		l = &pull{cancel: cancel, done: make(chan struct{}), owners: map[*wanting]struct{}{}}
		p.running[key] = l
		go p.run(own, key, l, do)
	}
	l.owners[me] = struct{}{}
	what := l.what
	p.mu.Unlock()
	if what != "" {
		tell(what)
	}
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	delete(l.owners, me)
	last := len(l.owners) == 0
	if last && p.running[key] == l {
		delete(p.running, key) // the next owner begins anew
	}
	p.mu.Unlock()
	if last {
		l.cancel()
		<-l.done // the agent waits for its own work
	}
	return ctx.Err()
}

func (p *pulls) run(
	ctx context.Context, key pullKey, l *pull, do func(context.Context) error,
) {
	defer l.cancel()
	tell := func(what string) { p.tell(l, what) }
	take := func(ctx context.Context, tell func(string)) (func(), error) {
		return p.turns.Take(ctx, key.tenant, tell)
	}
	if key.tenant == pando.DefaultTenant {
		take = p.turns.TakeAsOperator
	}
	done, err := take(ctx, tell)
	if err == nil {
		tell("")
		err = do(pando.TellWaits(ctx, tell))
		done()
	}
	p.mu.Lock()
	l.err = err
	if p.running[key] == l {
		delete(p.running, key)
	}
	p.mu.Unlock()
	close(l.done)
}

// tell passes on what a pull waits for.
func (p *pulls) tell(l *pull, what string) {
	p.mu.Lock()
	same := l.what == what
	l.what = what
	owners := make([]*wanting, 0, len(l.owners))
	for o := range l.owners {
		owners = append(owners, o)
	}
	p.mu.Unlock()
	if same {
		return
	}
	for _, o := range owners {
		o.tell(what)
	}
}
