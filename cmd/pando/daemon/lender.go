package daemon

import (
	"context"
	"os"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/sandbox/image"
)

// Bounds of the answers that a lender remembers. One pull asks for each blob of an image.
const (
	lentFor = time.Minute
	lentMax = 1024
)

// lender gives the images of this host to the hosts that control has placed them on, and to no
// others: an image may have a secret of its tenant, and a snapshot has the memory of a program.
type lender struct {
	store image.Snapshots
	ask   func(context.Context, pando.ImageQuestion) error
	now   func() time.Time
	mu    sync.Mutex
	until map[loan]time.Time // of answers that allow
}

type loan struct {
	to    pando.HostName
	image string
}

var _ peer.Images = (*lender)(nil)

func newLender(
	s *image.Store, ask func(context.Context, pando.ImageQuestion) error,
) *lender {
	return &lender{store: image.Snapshots{Store: s}, ask: ask, now: time.Now,
		until: map[loan]time.Time{}}
}

// Blob implements peer.Images.
func (l *lender) Blob(
	ctx context.Context, by pando.HostName, image, digest string,
) (*os.File, error) {
	if err := l.may(ctx, by, image); err != nil {
		return nil, err
	}
	return l.store.Blob(image, digest)
}

// Described implements peer.Images.
func (l *lender) Described(
	ctx context.Context, by pando.HostName, digest string,
) (pando.SealedSnapshot, error) {
	if err := l.may(ctx, by, digest); err != nil {
		return pando.SealedSnapshot{}, err
	}
	return l.store.Described(digest)
}

// may asks a server whether a host may have an image. A server may have every one, and so may root
// of this host.
func (l *lender) may(ctx context.Context, by pando.HostName, image string) error {
	if by == "" {
		return nil
	}
	to, now := loan{by, image}, l.now()
	l.mu.Lock()
	known := now.Before(l.until[to])
	l.mu.Unlock()
	if known {
		return nil
	}
	// Only an image that is here is worth a question.
	f, err := l.store.Blob(image, image)
	if err != nil {
		return err
	}
	f.Close()
	q := pando.ImageQuestion{Host: by, Digest: image}
	if st, err := l.store.Described(image); err == nil {
		q.Snapshot = &st
	}
	if err := l.ask(ctx, q); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.until) >= lentMax {
		clear(l.until)
	}
	l.until[to] = now.Add(lentFor)
	return nil
}
