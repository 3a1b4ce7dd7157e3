package work

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"pando.run/pando"
)

// readInterval is the time between two readings of the work of all instances. A kill of the agent
// loses at most the work of one interval, of instances that end meanwhile.
const readInterval = 10 * time.Second

// Running is an instance with a sandbox.
type Running struct {
	Instance pando.Instance
	Box      pando.Sandbox
	Born     time.Time // when it came to this host, by the clock of this host
}

// Reader reads the work of the instances of one host into its book.
type Reader struct {
	Books pando.Books // nil: nothing is counted
	// Traffic returns the bytes that a device of this host has sent and received. Nil: unknown.
	Traffic func(device string) (sent, received uint64)
	// Running returns the instances that have a sandbox.
	Running func() []Running
	Clock   pando.Clock
	IDs     pando.IDs
	Log     *slog.Logger

	mu   sync.Mutex // held while instances are read, so that no reading follows the last one
	book *Book      // nil: nothing is counted
}

var _ pando.WorkAgent = (*Reader)(nil)

// LoadBook reads the book of a former agent. An unreadable book is replaced by an empty one, because
// the bills have all but its newest lines.
func (w *Reader) LoadBook(running bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Books == nil {
		return
	}
	text, err := w.Books.Load()
	if err == nil && text != nil {
		if w.book, err = Parse(text); err == nil {
			return
		}
	}
	if err != nil {
		w.Log.Error("the work of this host that no bill has yet is lost", "error", err)
	}
	w.book = New(w.IDs.Sequential(w.Clock.Now()))
	if !running {
		w.book.Looked(w.Clock.Now())
	}
}

// Run reads the instances until ctx ends.
func (w *Reader) Run(ctx context.Context) {
	if w.Books == nil {
		return
	}
	for pando.Sleep(ctx, w.Clock, readInterval) == nil {
		w.readAll(ctx)
	}
}

// readAll takes a reading of every instance and saves the book.
func (w *Reader) readAll(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Clock.Now()
	for _, r := range w.Running() {
		w.note(ctx, r)
	}
	w.book.Looked(now)
	if err := w.save(); err != nil {
		w.Log.Error("the work of this host is kept in memory only", "error", err)
	}
}

// note takes a reading of an instance.
func (w *Reader) note(ctx context.Context, r Running) {
	use, err := r.Box.Usage(ctx)
	if err != nil {
		return // it is read again
	}
	now := Reading{
		Tenant: r.Instance.Service.Tenant, At: w.Clock.Now(), CPUSeconds: use.CPU.Seconds(),
	}
	if w.Traffic != nil {
		now.In, now.Out = w.Traffic(r.Box.Link().Host)
	}
	w.book.Note(r.Instance.ID, r.Born, now)
}

// End takes the last reading of an instance, which is out of sight and not removed yet.
func (w *Reader) End(ctx context.Context, r Running) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.book != nil {
		w.note(ctx, r)
		w.book.End(r.Instance.ID)
	}
}

func (w *Reader) save() error {
	text, err := w.book.Bytes()
	if err != nil {
		return err
	}
	return w.Books.Save(text)
}

// Work implements pando.HostAgent. The book is durable before a new batch leaves the host: after a
// kill, the batch has the same content.
func (w *Reader) Work(_ context.Context, after pando.WorkMark) (pando.WorkBatch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.book == nil {
		return pando.WorkBatch{}, nil
	}
	batch, changed := w.book.Seal(after)
	if changed {
		if err := w.save(); err != nil {
			return pando.WorkBatch{}, err
		}
	}
	return batch, nil
}
