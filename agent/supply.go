package agent

import (
	"context"
	"errors"
	"fmt"
	"io"

	"pando.run/pando"
)

// A start is what one instance needs of this host before its program can run. Every way to start
// takes the same steps: a new instance, a moved, a restored, a seeded, an evacuated and a failed over
// one. The steps are here only. A sandbox is made by a supplied start.
type start struct {
	inst pando.Instance
	svc  pando.Service // its addresses
	spec pando.Spec    // by which the instance runs
	// arrives is the program of a move, or nil.
	arrives io.Reader
}

// lack is what a start still waits for. The zero value is nothing.
type lack struct {
	files   pando.Image // its image, bundle or snapshot is not on this host
	secrets error       // why its secrets are not here
}

// none reports whether nothing is missing.
func (l lack) none() bool { return l.files.Digest == "" && l.secrets == nil }

// supplied is a start with everything that its sandbox needs.
type supplied struct {
	a    *Agent
	spec pando.SandboxSpec
	done func() // after the start
}

// supply brings together what a start needs. It waits for nothing that may take long: it names what
// is missing, and the caller brings that and calls again. The caller calls done of the result.
func (a *Agent) supply(ctx context.Context, s start) (g supplied, lacks lack, err error) {
	g = supplied{a: a, done: func() {}, spec: pando.SandboxSpec{Instance: s.inst, Spec: s.spec,
		VIP4: s.svc.VIP4, VIP6: s.svc.VIP6, Arrives: s.arrives}}
	if lacks.files, err = a.missingFiles(s); err != nil || lacks.files.Digest != "" {
		return g, lacks, err
	}
	if err := errors.Join(a.given(s.spec), a.admitVolumes(ctx, s.inst, s.spec)); err != nil {
		return g, lacks, err
	}
	g.spec.Secrets, err = a.secretsOf(ctx, s.inst.ID, s.spec)
	if errors.Is(err, pando.ErrUnavailable) || errors.Is(err, pando.ErrNotFound) {
		return g, lack{secrets: err}, nil
	}
	if err != nil {
		return g, lacks, err
	}
	if s.arrives == nil && s.inst.From != "" {
		if g, err = g.continuing(ctx, s.inst.From); err != nil {
			return g, lacks, err
		}
	}
	g.spec.Configs, err = a.renderConfigs(s.inst, s.spec, g.spec.Secrets)
	return g, lacks, err
}

// start makes the sandbox and starts the program in it.
func (g supplied) start(ctx context.Context) (pando.Sandbox, error) {
	return g.a.Sandboxes.Start(ctx, g.spec)
}

// continuing makes the start continue a snapshot.
func (g supplied) continuing(ctx context.Context, digest string) (supplied, error) {
	if g.a.SnapshotStore == nil {
		return g, fmt.Errorf("%w: this host restores no snapshots; `pando doctor` there prints why",
			pando.ErrUnsupported)
	}
	id := g.spec.Instance.ID
	from, done, err := g.a.SnapshotStore.Open(ctx, g.spec.Instance.Service, digest,
		func(ctx context.Context) (pando.SnapshotKey, error) {
			keys, err := g.a.snapshots.keys(ctx, id)
			return keys.Files, err
		})
	if done == nil {
		done = func() {}
	}
	g.spec.From, g.done = from, done
	return g, err
}

// missingFiles returns the image, the bundle or the snapshot of a start if it is not on this host.
func (a *Agent) missingFiles(s start) (pando.Image, error) {
	files := s.spec.Files()
	if s.inst.From != "" && s.arrives == nil { // the spec of a snapshot has no image
		files = pando.Image{Reference: pando.SnapshotPrefix + "another instance", Digest: s.inst.From}
	}
	if files.Digest == "" {
		return pando.Image{}, nil
	}
	if a.Images == nil {
		return pando.Image{}, fmt.Errorf("%w: this host keeps no images", pando.ErrUnsupported)
	}
	files.For = s.inst.Service.Tenant
	files.Prove = s.inst.Service.Tenant != pando.DefaultTenant && !files.OfFiles()
	if _, err := a.Images.Root(files.Digest, ""); err == nil && (!files.Prove || a.Images.Proven(files)) {
		return pando.Image{}, nil
	}
	return files, nil
}

// pull brings files to this host from the other hosts or a registry, for an instance of a tenant. It
// reports what it waits for.
func (a *Agent) pull(
	ctx context.Context, t pando.Tenant, files pando.Image, waits func(what string),
) error {
	return a.pulls.bring(ctx, t, files, waits,
		func(ctx context.Context) error { return a.Images.Pull(ctx, files, a.imageHosts(files)) })
}

// given returns nil if the owner of this host gives every grant of a spec. Control has looked
// already. This look counts after a change since, and for a spec of another revision.
func (a *Agent) given(spec pando.Spec) error {
	if len(spec.Grants) == 0 {
		return nil
	}
	h := a.Host.Name
	a.records.Lock()
	lacks := a.records.World.Members[h].V.Withholds(spec.Grants)
	a.records.Unlock()
	if lacks == "" {
		return nil
	}
	return fmt.Errorf("%w: host %s %s", pando.ErrForbidden, h, pando.NotGiven(h, lacks))
}

// renderConfigs renders the configs of an instance before its start.
func (a *Agent) renderConfigs(
	i pando.Instance, spec pando.Spec, secrets map[string][]byte,
) (out []pando.ConfigFile, err error) {
	size, all := 0, a.templates()
	for _, c := range spec.Configs {
		file, err := all.render(i, spec, c, secrets)
		if err != nil {
			return nil, err
		}
		if size += len(file.Content); size > pando.ConfigsBytesMax {
			return nil, fmt.Errorf("%w: the configs of the instance have more than %d bytes",
				pando.ErrTooLarge, pando.ConfigsBytesMax)
		}
		out = append(out, file)
	}
	return out, nil
}
