package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// fetching brings the image or the bundle of an instance to this host while its record waits in
// phase placed.
type fetching struct {
	begun, done bool
	reference   string
	err         error
}

// image returns whether the image or the bundle of a spec is on this host. Otherwise it begins to
// bring it, and imagePulled wakes the runner.
func (r *birth) image(spec pando.Spec) (here bool, err error) {
	files := spec.Files()
	if r.inst.From != "" { // the spec of a snapshot has no image
		files = pando.Image{Reference: pando.SnapshotPrefix + "another instance", Digest: r.inst.From}
	}
	if files.Digest == "" {
		return true, nil
	}
	if r.a.Images == nil {
		return false, fmt.Errorf("%w: this host keeps no images", pando.ErrUnsupported)
	}
	switch {
	case r.fetching.done:
		return r.fetching.err == nil, r.fetching.err
	case r.fetching.begun:
		return false, nil
	}
	if _, err := r.a.Images.Root(files.Digest, ""); err == nil {
		return true, nil
	}
	r.fetching.begun, r.fetching.reference = true, files.Reference
	r.fetches("")
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
		r.post(imagePulled{r.a.pulls.bring(ctx, r.service.Tenant, files,
			func(what string) { r.post(imageWaits{what}) },
			func(ctx context.Context) error {
				return r.a.Images.Pull(ctx, files, r.a.imageHosts(files))
			})})
	})
	return false, nil
}

// fetches records that the image of an instance is on its way, and what its pull waits for.
func (r *birth) fetches(what string) {
	r.inst.Reason = "its image is on the way: " + r.fetching.reference
	if what != "" {
		r.inst.Reason += "; it waits for " + what
	}
	r.recorder.add(r.inst, nil)
	r.show()
}

// imageHosts returns the other hosts that may have an image: the one that read it, then the others
// by name.
func (a *Agent) imageHosts(i pando.Image) []pando.Host {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []pando.Host
	for _, h := range a.world.Hosts {
		if h.V.Name != a.Host.Name {
			out = append(out, h.V)
		}
	}
	slices.SortFunc(out, func(x, y pando.Host) int {
		if first := i.Host; (x.Name == first) != (y.Name == first) {
			if x.Name == first {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.Name, y.Name)
	})
	return out
}

// HasHostAt reports whether a host of the cluster has an address.
func (a *Agent) HasHostAt(at netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.world.HasHostAt(at)
}

// ImagesInUse returns the digests of images and bundles that a revision known to this host has.
func (a *Agent) ImagesInUse() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]bool{}
	for _, i := range a.world.Instances {
		if i.V.From != "" {
			out[i.V.From] = true
		}
	}
	for _, digest := range a.seeds.used() {
		out[digest] = true
	}
	for _, revisions := range a.world.Revisions {
		for _, r := range revisions {
			if d := r.V.Spec.Files().Digest; d != "" {
				out[d] = true
			}
		}
	}
	return out
}

// begin makes the sandbox of an instance once its image is here.
func (r *birth) begin(
	ctx context.Context, i pando.Instance, svc pando.Service, spec pando.Spec,
) (pando.Sandbox, time.Duration) {
	here, err := r.image(spec)
	if err == nil {
		err = r.given(spec)
	}
	if err == nil && !here {
		return nil, 0
	}
	var secrets map[string][]byte
	if err == nil {
		var wait time.Duration
		if secrets, wait, err = r.secrets(ctx, spec); wait > 0 {
			return nil, wait
		}
	}
	r.begun = true
	r.show()
	from, done, err := r.snapshot(ctx, i, err)
	defer done()
	var configs []pando.ConfigFile
	if err == nil {
		configs, err = r.configs(svc, spec, secrets)
	}
	var box pando.Sandbox
	if err == nil {
		box, err = r.grow(ctx, pando.SandboxSpec{
			Instance: i, Spec: spec, VIP4: svc.VIP4, VIP6: svc.VIP6, Secrets: secrets, From: from,
			Configs: configs,
		})
	}
	if err == nil && from != "" {
		r.events.send(r.a.Clock.Now(), pando.EventRestored, map[string]string{"snapshot": i.From})
	}
	if err != nil {
		if ctx.Err() == nil {
			r.failStart(spec, err)
		}
		return nil, time.Millisecond
	}
	return box, 0
}

// given returns nil if the owner of this host gives every grant of a spec. Control has looked
// already. This look counts after a change since, and for a spec of another revision.
func (r *birth) given(spec pando.Spec) error {
	if len(spec.Grants) == 0 {
		return nil
	}
	h, lacks := r.a.Host.Name, pando.Grant("")
	r.a.read(func(w *world.World) { lacks = w.Members[h].V.Withholds(spec.Grants) })
	if lacks == "" {
		return nil
	}
	return fmt.Errorf("%w: host %s %s", pando.ErrForbidden, h, pando.NotGiven(h, lacks))
}

// snapshot returns the files of the snapshot that an instance continues, or "". An earlier error
// stays. The caller calls done after the start.
func (r *birth) snapshot(
	ctx context.Context, i pando.Instance, err error,
) (from string, done func(), _ error) {
	if err != nil || i.From == "" {
		return "", func() {}, err
	}
	if r.a.SnapshotStore == nil {
		return "", func() {}, fmt.Errorf("%w: this host restores no snapshots; `pando doctor` there "+
			"prints why", pando.ErrUnsupported)
	}
	return r.a.SnapshotStore.Open(ctx, i.From,
		func(ctx context.Context) (pando.SnapshotKey, error) { return r.a.snapshots.key(ctx, r.id) })
}
