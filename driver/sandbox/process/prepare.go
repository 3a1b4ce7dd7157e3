package process

import (
	"context"
	"fmt"
	"reflect"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// prepared is a sandbox with a loaded program that waits before its first instruction.
type prepared struct {
	spec pando.SandboxSpec
	done chan struct{} // closed once box exists or has failed
	box  *sandbox      // nil: the preparation failed
}

// Prepare implements pando.Sandboxes. It uses only a ready sandbox of the pool: a new one costs
// more time than Prepare saves.
func (d *Driver) Prepare(ctx context.Context, spec pando.SandboxSpec) error {
	p := &prepared{spec: spec, done: make(chan struct{})}
	defer close(p.done)
	d.mu.Lock()
	_, twice := d.prepared[spec.Instance.ID]
	none := d.pool.empty()
	if !twice && !none {
		d.prepared[spec.Instance.ID] = p
	}
	d.mu.Unlock()
	switch {
	case twice:
		return fmt.Errorf("prepare %s: %w", spec.Instance.ID, pando.ErrExists)
	case none:
		return fmt.Errorf("prepare %s: %w: the pool is empty", spec.Instance.ID, pando.ErrNotReady)
	}
	s, err := d.claim(spec.Spec)
	if err != nil {
		return err
	}
	p.box, err = d.use(ctx, s, spec, true)
	return err
}

// takePrepared removes and returns the preparation of an instance once it is finished, or nil.
func (d *Driver) takePrepared(i pando.InstanceID) *prepared {
	d.mu.Lock()
	p := d.prepared[i]
	delete(d.prepared, i)
	d.mu.Unlock()
	if p == nil {
		return nil
	}
	if <-p.done; p.box == nil {
		return nil
	}
	return p
}

// letGo starts the loaded program of an instance. It returns nil if there is none, or after it
// dropped one that it could not use, such as another program.
func (d *Driver) letGo(ctx context.Context, spec pando.SandboxSpec) *sandbox {
	p := d.takePrepared(spec.Instance.ID)
	if p == nil {
		return nil
	}
	if ctx.Err() == nil && sameProgram(p.spec, spec) &&
		wire.Send(p.box.watch, wire.Request{Verb: "go"}, -1) == nil {
		go p.box.listen()
		return p.box
	}
	d.drop(p)
	return nil
}

// sameProgram reports whether two specs make the same sandbox.
func sameProgram(a, b pando.SandboxSpec) bool {
	return a.Instance.Service == b.Instance.Service && a.Instance.Role == b.Instance.Role &&
		a.VIP4 == b.VIP4 && a.VIP6 == b.VIP6 && a.From == b.From &&
		reflect.DeepEqual(a.Spec, b.Spec)
}

// Discard implements pando.Sandboxes.
func (d *Driver) Discard(i pando.InstanceID) {
	d.mu.Lock()
	_, ok := d.prepared[i]
	d.mu.Unlock()
	if !ok {
		return
	}
	d.removals.Add(1)
	go func() {
		defer d.removals.Done()
		if p := d.takePrepared(i); p != nil {
			d.drop(p)
		}
	}()
}

// drop removes a sandbox in which nothing has started.
func (d *Driver) drop(p *prepared) {
	p.box.close()
	d.scrap(p.box.slot)
}
