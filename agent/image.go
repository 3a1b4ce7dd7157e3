package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/supply"
)

// fetching brings the image or the bundle of an instance to this host while its record waits in
// phase placed.
type fetching struct {
	begun, done bool
	reference   string
	err         error
}

// fetchFiles begins to bring the files that a start lacks, and imagePulled wakes the runner. The
// pull ends with the instance. It returns an error if they cannot be had.
func (r *runner) fetchFiles(files pando.Image) error {
	switch {
	case r.birth.fetching.done && r.birth.fetching.err == nil:
		return fmt.Errorf("%w: %s came to this host and is gone again", pando.ErrNotReady,
			files.Reference)
	case r.birth.fetching.begun:
		return r.birth.fetching.err
	}
	r.birth.fetching.begun, r.birth.fetching.reference = true, files.Reference
	r.explainFetch("")
	r.a.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { // the pull is of this instance, and ends with it
			select {
			case <-r.ended:
				cancel()
			case <-ctx.Done():
			}
		}()
		r.post(imagePulled{r.a.supplier.Pull(ctx, r.service.Tenant, files,
			func(what string) { r.post(imageWaits{what}) })})
	})
	return nil
}

// explainFetch records that the image of an instance is on its way, and what its pull waits for.
func (r *runner) explainFetch(what string) {
	r.inst.Reason = "its image is on the way: " + r.birth.fetching.reference
	if what != "" {
		r.inst.Reason += "; it waits for " + what
	}
	r.recorder.Add(r.inst, nil)
	r.show()
}

// HasHostAt reports whether a host of the cluster has an address.
func (a *Agent) HasHostAt(at netip.Addr) bool {
	a.records.Lock()
	defer a.records.Unlock()
	return a.records.World.HasHostAt(at)
}

// ImagesInUse returns the digests of images and bundles that a revision known to this host has.
func (a *Agent) ImagesInUse() map[string]bool {
	a.records.Lock()
	defer a.records.Unlock()
	out := map[string]bool{}
	for _, i := range a.records.World.Instances {
		if i.V.From != "" {
			out[i.V.From] = true
		}
	}
	for _, digest := range a.seeds.Digests() {
		out[digest] = true
	}
	for _, revisions := range a.records.World.Revisions {
		for _, r := range revisions {
			if d := r.V.Spec.Files().Digest; d != "" {
				out[d] = true
			}
		}
	}
	return out
}

// makeSandbox makes the sandbox of an instance once everything that it needs is here.
func (r *runner) makeSandbox(
	ctx context.Context, i pando.Instance, svc pando.Service, spec pando.Spec,
) (pando.Sandbox, time.Duration) {
	if len(spec.Configs) > 0 {
		r.a.crews.follow(r, spec)
	}
	g, lacks, err := r.a.supplier.Supply(ctx, supply.Start{Instance: i, Service: svc, Spec: spec})
	defer func() { g.Done() }()
	switch {
	case err != nil:
	case lacks.Secrets != nil:
		return nil, r.awaitSecrets(ctx, lacks.Secrets)
	case !lacks.IsEmpty():
		if err = r.fetchFiles(lacks.Files); err == nil {
			return nil, 0
		}
	}
	var box pando.Sandbox
	if r.begun = true; err == nil {
		r.show()
		box, err = r.startSandbox(ctx, g)
	}
	if err == nil && i.From != "" {
		r.events.Send(r.a.Clock.Now(), pando.EventRestored, map[string]string{"snapshot": i.From})
	}
	if err != nil {
		if ctx.Err() == nil {
			r.failStart(spec, err)
		}
		return nil, time.Millisecond
	}
	return box, 0
}
