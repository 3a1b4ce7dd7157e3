package requests

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// imageRightWait bounds the wait for the record of an instance: the server that placed it may be
// another one.
const imageRightWait = 2 * time.Second

// MayHaveImage returns nil if a host may have an image out of the store of another host: control has
// placed an instance with that image there, or moves one there, or has placed one of the service
// whose memory it is. ErrForbidden:
// nothing there needs it.
func (c *snapshots) MayHaveImage(ctx context.Context, q pando.ImageQuestion) error {
	if s := q.Snapshot; s != nil && (s.Digest != q.Digest || !c.proven(*s, s.Service)) {
		return fmt.Errorf("%w: the description of snapshot %s has no proof of Pando", pando.ErrForbidden,
			shortDigest(q.Digest))
	}
	ctx, cancel := context.WithTimeout(ctx, imageRightWait)
	defer cancel()
	for {
		c.desk.mirror.Mu.Lock()
		news, may := c.desk.mirror.Changed, needsImage(c.desk.mirror.World, q)
		c.desk.mirror.Mu.Unlock()
		if may {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: nothing on host %s has the image %s; only the hosts of its services get "+
				"it from other hosts", pando.ErrForbidden, q.Host, shortDigest(q.Digest))
		case <-news:
		}
	}
}

// needsImage reports whether an instance on a host, or on its way there, has an image.
func needsImage(w *world.World, q pando.ImageQuestion) bool {
	for _, i := range w.On(q.Host) {
		if q.Snapshot != nil {
			if i.Service == q.Snapshot.Service && i.From == q.Digest {
				return true
			}
			continue
		}
		if hasFiles(w, i, q.Digest) {
			return true
		}
	}
	for _, i := range w.Instances {
		if q.Snapshot == nil && i.V.Bound == q.Host && hasFiles(w, i.V, q.Digest) {
			return true
		}
	}
	return false
}

func hasFiles(w *world.World, i pando.Instance, digest string) bool {
	spec, ok := w.SpecOf(i.Service, i.Revision)
	return ok && spec.Files().Digest == digest
}
