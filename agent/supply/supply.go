// Package supply brings together what one instance needs of a host before its program can run: its
// image, bundle or snapshot, its secrets and its configs.
//
// It never decides that an instance starts: the runner of the instance, or its arrival, does.
package supply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"pando.run/pando"
)

// A Start is what one instance needs of this host before its program can run. Every way to start
// takes the same steps: a new instance, a moved, a restored, a seeded, an evacuated and a failed
// over one. The steps are here only. A sandbox is made by a supplied start.
type Start struct {
	Instance pando.Instance
	Service  pando.Service // its addresses
	Spec     pando.Spec    // by which the instance runs
	// Arrives is the program of a move, or nil.
	Arrives io.Reader
}

// Lack is what a start still waits for. The zero value means that all is here.
type Lack struct {
	Files   pando.Image // its image, bundle or snapshot is not on this host
	Secrets error       // why its secrets are not here
}

// IsEmpty reports whether nothing is missing.
func (l Lack) IsEmpty() bool { return l.Files.Digest == "" && l.Secrets == nil }

// Supplied is a start with everything that its sandbox needs.
type Supplied struct {
	from *Supplier
	Spec pando.SandboxSpec
	Done func() // the caller calls it after the start
}

// Supply brings together what a start needs. It waits for nothing that may take long: it names what
// is missing, and the caller brings that and calls again. The caller calls Done of the result.
func (a *Supplier) Supply(
	ctx context.Context, s Start,
) (g Supplied, lacks Lack, err error) {
	g = Supplied{from: a, Done: func() {}, Spec: pando.SandboxSpec{Instance: s.Instance, Spec: s.Spec,
		VIP4: s.Service.VIP4, VIP6: s.Service.VIP6, Arrives: s.Arrives}}
	if lacks.Files, err = a.MissingFiles(s); err != nil || lacks.Files.Digest != "" {
		return g, lacks, err
	}
	if err := errors.Join(a.given(s.Spec), a.Admit(ctx, s.Instance, s.Spec)); err != nil {
		return g, lacks, err
	}
	g.Spec.Secrets, err = a.SecretsOf(ctx, s.Instance.ID, s.Spec)
	if errors.Is(err, pando.ErrUnavailable) || errors.Is(err, pando.ErrNotFound) {
		return g, Lack{Secrets: err}, nil
	}
	if err != nil {
		return g, lacks, err
	}
	if s.Arrives == nil && s.Instance.From != "" {
		if g, err = g.Continuing(ctx, s.Instance.From); err != nil {
			return g, lacks, err
		}
	}
	g.Spec.Configs, err = a.renderConfigs(s.Instance, s.Spec, g.Spec.Secrets)
	return g, lacks, err
}

// Start makes the sandbox and starts the program in it.
func (g Supplied) Start(ctx context.Context) (pando.Sandbox, error) {
	return g.from.Sandboxes.Start(ctx, g.Spec)
}

// Continuing makes the start continue a snapshot.
func (g Supplied) Continuing(ctx context.Context, digest string) (Supplied, error) {
	if g.from.Snapshots == nil {
		return g, fmt.Errorf("%w: this host restores no snapshots; `pando doctor` there prints why",
			pando.ErrUnsupported)
	}
	id := g.Spec.Instance.ID
	from, done, err := g.from.Snapshots.Open(ctx, g.Spec.Instance.Service, digest,
		func(ctx context.Context) (pando.SnapshotKey, error) {
			keys, err := g.from.KeysOf(ctx, id)
			return keys.Files, err
		})
	if done == nil {
		done = func() {}
	}
	g.Spec.From, g.Done = from, done
	return g, err
}

// MissingFiles returns the image, the bundle or the snapshot of a start if it is not on this host.
func (a *Supplier) MissingFiles(s Start) (pando.Image, error) {
	files := s.Spec.Files()
	if s.Instance.From != "" && s.Arrives == nil { // the spec of a snapshot has no image
		files = pando.Image{Reference: pando.SnapshotPrefix + "another instance", Digest: s.Instance.From}
	}
	if files.Digest == "" {
		return pando.Image{}, nil
	}
	if a.Images == nil {
		return pando.Image{}, fmt.Errorf("%w: this host keeps no images", pando.ErrUnsupported)
	}
	files.For = s.Instance.Service.Tenant
	files.Prove = s.Instance.Service.Tenant != pando.DefaultTenant && !files.OfFiles()
	if _, err := a.Images.Root(files.Digest, ""); err == nil && (!files.Prove || a.Images.Proven(files)) {
		return pando.Image{}, nil
	}
	return files, nil
}

// Pull brings files to this host from the other hosts or a registry, for an instance of a tenant.
// It reports what it waits for.
func (a *Supplier) Pull(
	ctx context.Context, t pando.Tenant, files pando.Image, waits func(what string),
) error {
	return a.pulls.bring(ctx, t, files, waits,
		func(ctx context.Context) error { return a.Images.Pull(ctx, files, a.hostsWith(files)) })
}

// given returns nil if the owner of this host gives every grant of a spec. Control has looked
// already. This look counts after a change since, and for a spec of another revision.
func (a *Supplier) given(spec pando.Spec) error {
	if len(spec.Grants) == 0 {
		return nil
	}
	h := a.Host
	a.Records.Lock()
	lacks := a.Records.World.Members[h].V.Withholds(spec.Grants)
	a.Records.Unlock()
	if lacks == "" {
		return nil
	}
	return fmt.Errorf("%w: host %s %s", pando.ErrForbidden, h, pando.NotGiven(h, lacks))
}

// renderConfigs renders the configs of an instance before its start.
func (a *Supplier) renderConfigs(
	i pando.Instance, spec pando.Spec, secrets map[string][]byte,
) (out []pando.ConfigFile, err error) {
	size, all := 0, a.Templates()
	for _, c := range spec.Configs {
		file, err := all.Render(i, spec, c, secrets)
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

// hostsWith returns the other hosts that may have an image: the one that read it, then the others
// by name.
func (a *Supplier) hostsWith(i pando.Image) []pando.Host {
	a.Records.Lock()
	defer a.Records.Unlock()
	var out []pando.Host
	for _, h := range a.Records.World.Hosts {
		if h.V.Name != a.Host {
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
