package agent

import (
	"context"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/work"
)

// workInterval is the time between two readings of the work of all instances. A kill of the agent
// loses at most the work of one interval, of instances that end meanwhile.
const workInterval = 10 * time.Second

// works counts the work of the instances of this host.
type works struct {
	a    *Agent
	mu   sync.Mutex // held while instances are read, so that no reading follows the last one
	book *work.Book // nil: nothing is counted
}

func newWorks(a *Agent) *works { return &works{a: a} }

// open reads the book of a former agent. An unreadable book is replaced by an empty one, because
// the bills have all but its newest lines.
func (w *works) open(running bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.a.Books == nil {
		return
	}
	text, err := w.a.Books.Load()
	if err == nil && text != nil {
		if w.book, err = work.Parse(text); err == nil {
			return
		}
	}
	if err != nil {
		w.a.Log.Error("the work of this host that no bill has yet is lost", "error", err)
	}
	w.book = work.New(w.a.IDs.Sequential(w.a.Clock.Now()))
	if !running {
		w.book.Looked(w.a.Clock.Now())
	}
}

// run reads the instances until ctx ends.
func (w *works) run(ctx context.Context) {
	if w.a.Books == nil {
		return
	}
	for pando.Sleep(ctx, w.a.Clock, workInterval) == nil {
		w.read(ctx)
	}
}

// read takes a reading of every instance and saves the book.
func (w *works) read(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, now := w.a, w.a.Clock.Now()
	var all []status
	a.records.Lock()
	for _, r := range a.crews.everyRunner() {
		if r.shown.box != nil {
			all = append(all, r.shown)
		}
	}
	a.records.Unlock()
	for _, s := range all {
		w.note(ctx, s)
	}
	w.book.Looked(now)
	if err := w.save(); err != nil {
		a.Log.Error("the work of this host is kept in memory only", "error", err)
	}
}

// note takes a reading of an instance. The caller holds the lock.
func (w *works) note(ctx context.Context, s status) {
	i, box := s.inst, s.box
	use, err := box.Usage(ctx)
	if err != nil {
		return // it is read again
	}
	now := work.Reading{
		Tenant: i.Service.Tenant, At: w.a.Clock.Now(), CPUSeconds: use.CPU.Seconds(),
	}
	if w.a.Traffic != nil {
		now.In, now.Out = w.a.Traffic(box.Link().Host)
	}
	w.book.Note(i.ID, s.born, now)
}

// end takes the last reading of an instance, which is out of sight and not removed yet.
func (w *works) end(ctx context.Context, r *runner, box pando.Sandbox) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.book != nil {
		w.note(ctx, status{inst: r.inst, box: box, born: r.born()})
		w.book.End(r.id)
	}
}

func (w *works) save() error {
	text, err := w.book.Bytes()
	if err != nil {
		return err
	}
	return w.a.Books.Save(text)
}

// Work implements pando.HostAgent. The book is durable before a new batch leaves the host: after a
// kill, the batch has the same content.
func (w *window) Work(_ context.Context, after pando.WorkMark) (pando.WorkBatch, error) {
	k := w.agent.works
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.book == nil {
		return pando.WorkBatch{}, nil
	}
	batch, changed := k.book.Seal(after)
	if changed {
		if err := k.save(); err != nil {
			return pando.WorkBatch{}, err
		}
	}
	return batch, nil
}
