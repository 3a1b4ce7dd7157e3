package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// atOnce is how many layers of one image are brought at the same time.
const atOnce = 3

// Pull implements pando.Images.
func (s *Store) Pull(ctx context.Context, i pando.Image, hosts []pando.Host) error {
	top, err := digest(i.Digest)
	if err != nil {
		return err
	}
	isSnapshot := strings.HasPrefix(i.Reference, pando.SnapshotPrefix)
	if k, err := s.look(top); err == nil && s.present(k) && (!i.Prove || s.Proven(i)) {
		if _, described := s.snapshot(top); described || !isSnapshot {
			return charges{s}.note(i)
		}
	}
	done, err := s.using(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, err := s.sources(ctx, i, top, hosts)
	if err == nil {
		err = s.bring(ctx, i, top, from)
	}
	if err == nil && isSnapshot {
		err = s.describeCopy(ctx, top, hosts)
	}
	if err != nil {
		return fmt.Errorf("pull %s (%s): %w", called(i.Reference), short(top), err)
	}
	return nil
}

// bring fetches everything of an image and unpacks its layers.
func (s *Store) bring(ctx context.Context, i pando.Image, top v1.Hash, from []source) error {
	k, err := s.describe(ctx, top, from)
	if err != nil {
		return err
	}
	room, err := charges{s}.room(i, k)
	if err != nil {
		return err
	}
	left := &allowance{bytes: room}
	if err := s.affords(k, left); err != nil {
		return s.unlisted(top, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(k.manifest.Layers))
	turn := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	for n, d := range k.manifest.Layers {
		group.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			if errs[n] = s.layerOf(ctx, d, k.config.RootFS.DiffIDs[n], from, left); errs[n] != nil {
				cancel()
			}
		})
	}
	group.Wait()
	if err := firstCause(errs); err != nil {
		return s.unlisted(top, err)
	}
	if err := errors.Join(s.remember(top, i.For, i.Reference), charges{s}.note(i)); err != nil || i.Prove {
		return err
	}
	r := s.recalled(top)
	r.Vouched = true
	return s.write(top, r)
}

// unlisted returns the error of a pull, and forgets an image that was refused for its content: it
// never becomes an image of this host.
func (s *Store) unlisted(top v1.Hash, err error) error {
	if errors.As(err, new(layerError)) {
		return errors.Join(err, s.forget(top))
	}
	return err
}

// firstCause returns the error that is not the end of the others.
func firstCause(errs []error) error {
	var last error
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		if err != nil {
			last = err
		}
	}
	return last
}

// affords returns an error for an image that is too large for its bound or for the disk, as far as
// the sizes are known.
func (s *Store) affords(k *known, left *allowance) error {
	var need, packed int64
	for n, d := range k.manifest.Layers {
		files := k.config.RootFS.DiffIDs[n]
		if packed += max(d.Size, 0); packed > s.UnpackedMax {
			return layerError{fmt.Errorf("%w: its layers have more than %d MiB", pando.ErrTooLarge,
				s.UnpackedMax>>20)}
		}
		if !s.ready(d, files) {
			need += 2 * d.Size // packed and unpacked, at least
		} else if s.Packed {
			continue
		} else if err := left.take(s.unpackedBytes(files)); err != nil {
			return err
		}
	}
	return s.room(need)
}

// allowance is what the layers of one image may still unpack to.
type allowance struct {
	mu    sync.Mutex
	bytes int64
}

func (a *allowance) now() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

func (a *allowance) take(n int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bytes -= n; a.bytes < 0 {
		return layerError{fmt.Errorf("%w: the files of its layers together are larger than the bound of an "+
			"image", pando.ErrTooLarge)}
	}
	return nil
}

func (s *Store) layerOf(
	ctx context.Context, d v1.Descriptor, files v1.Hash, from []source, left *allowance,
) error {
	known := s.has(d) && originOf(s.sent, from).mayUse(d.Digest) &&
		(s.Packed || s.sent.Unpacks(d.Digest, files))
	if s.ready(d, files) && known {
		return nil
	}
	if err := s.fetch(ctx, d, from); err != nil || s.Packed {
		return err
	}
	return s.unpack(ctx, d, files, left)
}

// look returns an image from this store alone.
func (s *Store) look(top v1.Hash) (*known, error) {
	s.mu.Lock()
	k := s.known[top.Hex]
	s.mu.Unlock()
	if k != nil {
		return k, nil
	}
	return s.describe(context.Background(), top, nil)
}

// ourLabel returns a label of an image with a name of Pando. Pando itself writes none, so that no
// reader ever takes a label of anybody for a word of Pando.
func ourLabel(labels map[string]string) string {
	for name := range labels {
		if strings.HasPrefix(name, "run.pando.") || name == "run.pando" {
			return name
		}
	}
	return ""
}

// knownMax bounds the images that are kept in memory. The oldest are read again.
const knownMax = 256

// describe reads the manifest and the configuration of an image for this host's architecture.
func (s *Store) describe(ctx context.Context, top v1.Hash, from []source) (*known, error) {
	manifest, child, err := s.manifest(ctx, top, from)
	if err != nil {
		return nil, err
	}
	raw, err := s.small(ctx, manifest.Config, from)
	if err != nil {
		return nil, fmt.Errorf("its configuration: %w", err)
	}
	var config v1.ConfigFile
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("%w: its configuration: %w", pando.ErrInvalid, err)
	}
	switch n := len(manifest.Layers); {
	case config.OS != "linux" || config.Architecture != s.Architecture:
		return nil, fmt.Errorf("%w: it is built for %s/%s, and this host is linux/%s; name an image "+
			"for this host", pando.ErrRefused, config.OS, config.Architecture, s.Architecture)
	case ourLabel(config.Config.Labels) != "":
		return nil, fmt.Errorf("%w: it has the label %s, and only Pando writes labels of run.pando; build "+
			"it without", pando.ErrRefused, ourLabel(config.Config.Labels))
	case n != len(config.RootFS.DiffIDs):
		return nil, fmt.Errorf("%w: %d layers, and its configuration has %d", pando.ErrInvalid, n,
			len(config.RootFS.DiffIDs))
	case n == 0 || n > layersMax:
		return nil, fmt.Errorf("%w: %d layers: want 1 to %d", pando.ErrTooLarge, n, layersMax)
	}
	for _, h := range config.RootFS.DiffIDs {
		if _, err := digest(h.String()); err != nil {
			return nil, err
		}
	}
	k := &known{
		top: top, child: child, manifest: manifest, config: &config,
		users: map[string]pando.ImageRoot{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= knownMax {
		clear(s.known)
	}
	s.known[top.Hex] = k
	return k, nil
}

// manifest returns the manifest of an image, chosen from an index by this host's architecture.
func (s *Store) manifest(
	ctx context.Context, top v1.Hash, from []source,
) (*v1.Manifest, v1.Hash, error) {
	d := v1.Descriptor{Digest: top, MediaType: types.OCIManifestSchema1}
	for range 2 {
		raw, err := s.small(ctx, d, from)
		if err != nil {
			return nil, top, fmt.Errorf("its manifest: %w", err)
		}
		var is struct {
			v1.Manifest
			Manifests []v1.Descriptor `json:"manifests"`
		}
		if err := json.Unmarshal(raw, &is); err != nil {
			return nil, top, fmt.Errorf("%w: its manifest: %w", pando.ErrInvalid, err)
		}
		if is.Manifests == nil {
			if is.Config.Digest.Hex == "" {
				return nil, top, fmt.Errorf("%w: its manifest is of a kind that is not known", pando.ErrInvalid)
			}
			return &is.Manifest, d.Digest, nil
		}
		if d, err = s.choose(is.Manifests); err != nil {
			return nil, top, err
		}
	}
	return nil, top, fmt.Errorf("%w: an index within an index", pando.ErrInvalid)
}

// choose returns the image for this host's architecture.
func (s *Store) choose(all []v1.Descriptor) (v1.Descriptor, error) {
	var offers []string
	for _, d := range all {
		p := d.Platform
		if p == nil && len(all) == 1 {
			return d, nil
		}
		if p == nil || p.OS == "unknown" {
			continue
		}
		if p.OS == "linux" && p.Architecture == s.Architecture {
			return d, nil
		}
		if len(offers) < offersMax {
			offers = append(offers, p.OS+"/"+p.Architecture)
		}
	}
	return v1.Descriptor{}, fmt.Errorf("%w: it is built for %s, and this host is linux/%s; name an "+
		"image for this host", pando.ErrRefused, strings.Join(offers, ", "), s.Architecture)
}

// ready reports whether a layer is here, in the form that this store brings it to.
func (s *Store) ready(d v1.Descriptor, files v1.Hash) bool {
	return s.unpacked(files) || s.Packed && s.has(d)
}

// present reports whether all layers of an image are here.
func (s *Store) present(k *known) bool {
	for n, files := range k.config.RootFS.DiffIDs {
		if !s.ready(k.manifest.Layers[n], files) {
			return false
		}
	}
	return true
}

// complete reports whether all layers of an image are unpacked here.
func (s *Store) complete(k *known) bool {
	for _, files := range k.config.RootFS.DiffIDs {
		if !s.unpacked(files) {
			return false
		}
	}
	return true
}

// Root implements pando.Images.
func (s *Store) Root(text, user string) (pando.ImageRoot, error) {
	var none pando.ImageRoot
	top, err := digest(text)
	if err != nil {
		return none, err
	}
	k, err := s.look(top)
	if err != nil || !s.complete(k) {
		return none, fmt.Errorf("%w: the layers of image %s are not on this host", pando.ErrNotReady,
			short(top))
	}
	s.mu.Lock()
	r, ok := k.users[user]
	now := s.Clock.Now()
	touch := now.Sub(k.touched) > touchEvery
	if touch {
		k.touched = now
	}
	s.mu.Unlock()
	if touch {
		if err := s.Touch(text); err != nil {
			s.Log.Warn("the use of an image is not noted", "image", short(top), "error", err)
		}
	}
	if ok {
		return r, nil
	}
	var layers, folders []string
	for n := len(k.config.RootFS.DiffIDs) - 1; n >= 0; n-- {
		files := k.config.RootFS.DiffIDs[n]
		layers, folders = append(layers, layerName(files)), append(folders, s.layer(files))
	}
	r, err = identify(user, readTop(folders, "etc", "passwd"), readTop(folders, "etc", "group"))
	if err != nil {
		return none, err
	}
	r.Layers = distinct(layers)
	if r.Owners, err = ownersOf(s.vault, k.config.RootFS.DiffIDs); err != nil {
		return none, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(k.users) < knownMax {
		k.users[user] = r
	}
	return r, nil
}

// distinct drops repeated layers, such as empty ones: overlayfs takes each folder once. The highest
// stays, because nothing below it can undo it.
func distinct(layers []string) (out []string) {
	seen := map[string]bool{}
	for _, l := range layers {
		if !seen[l] {
			out = append(out, l)
		}
		seen[l] = true
	}
	return out
}

// short returns the beginning of a digest, for people.
func short(h v1.Hash) string { return h.Algorithm + ":" + h.Hex[:min(12, len(h.Hex))] }

// charges are the bytes of images by the tenants for whose instances they were brought here.
type charges struct{ store *Store }

// bytesOf returns the bytes of an image that is here: its blobs, and the files of its layers.
func (c charges) bytesOf(k *known) (n int64) {
	for at, d := range k.manifest.Layers {
		if c.store.has(d) {
			n += d.Size
		}
		n += c.store.unpackedBytes(k.config.RootFS.DiffIDs[at])
	}
	return n
}

// bytesFor returns the bytes of the images that this host has brought for a tenant, without one. A
// layer of two images counts for both.
func (c charges) bytesFor(t pando.Tenant, without string) (n int64) {
	entries, _ := os.ReadDir(c.store.records())
	for _, e := range entries {
		top, err := digest("sha256:" + e.Name())
		if err != nil || top.String() == without || !slices.Contains(c.store.recalled(top).Tenants, t) {
			continue
		}
		if k, err := c.store.look(top); err == nil {
			n += c.bytesOf(k)
		}
	}
	return n
}

// tenantsFree times the space that a pull leaves free is what the images of tenants leave free. The
// difference is the reserve of operators.
const tenantsFree = 2

// room returns the bytes that an image of a tenant may unpack to on this host, or an error if the
// tenant has its share already. Operators have the tenant default, and no share.
func (c charges) room(i pando.Image, k *known) (int64, error) {
	if c.store.TenantBytes == 0 || i.For == "" || i.For == pando.DefaultTenant {
		return c.store.UnpackedMax, nil
	}
	packed := int64(0)
	for _, d := range k.manifest.Layers {
		packed += max(d.Size, 0)
	}
	if err := room(c.store.Dir, 2*packed, tenantsFree*c.store.FreeMin); err != nil {
		return 0, fmt.Errorf("an image of tenant %s: %w", i.For, err)
	}
	used := c.bytesFor(i.For, i.Digest)
	b := share.Bound{Total: c.store.TenantBytes, Each: c.store.TenantBytes}
	// Unpacked files are at least as large as the blobs, but for archives that compression enlarges.
	if err := b.Admits(share.Use{All: used, Owners: used, Own: used}, 2*packed); err != nil {
		return 0, fmt.Errorf("%w: the images of tenant %s have %d MiB on this host, of at most %d, and this "+
			"one needs %d; remove a service, and its image goes when nothing uses it",
			pando.ErrStoreFull, i.For, used>>20, c.store.TenantBytes>>20, 2*packed>>20)
	}
	return min(c.store.UnpackedMax, c.store.TenantBytes-used-packed), nil
}

// note notes that an image is here for a tenant.
func (c charges) note(i pando.Image) error {
	top, err := digest(i.Digest)
	if err != nil || i.For == "" {
		return err
	}
	r := c.store.recalled(top)
	if slices.Contains(r.Tenants, i.For) {
		return nil
	}
	r.Tenants = append(r.Tenants, i.For)
	return c.store.write(top, r)
}

// crowded reports whether an image that nothing uses should go before its time: all its tenants have
// more than half of their shares here.
func (c charges) crowded(digestText string) bool {
	top, err := digest(digestText)
	r := c.store.recalled(top)
	if err != nil || c.store.TenantBytes == 0 || len(r.Tenants) == 0 {
		return false
	}
	return !slices.ContainsFunc(r.Tenants, func(t pando.Tenant) bool {
		return t == pando.DefaultTenant || c.bytesFor(t, "") <= c.store.TenantBytes/2
	})
}

// inTurn returns images in the order in which they make room: again and again the longest unused one
// of the tenant with the most bytes. Images of several tenants are of none of them.
func (c charges) inTurn(lastUsedFirst []pando.ImageStatus) (out []pando.ImageStatus) {
	all := slices.Clone(lastUsedFirst)
	slices.Reverse(all)
	pieces := make([]share.Piece[pando.Tenant], len(all))
	for n, i := range all {
		top, err := digest(i.Digest)
		if err != nil {
			continue // List names none such
		}
		if k, err := c.store.look(top); err == nil {
			pieces[n].Size = c.bytesOf(k)
		}
		if of := c.store.recalled(top).Tenants; len(of) == 1 {
			pieces[n].Owner = of[0]
		}
	}
	for n := range share.Trim(pieces, -1) {
		out = append(out, all[n])
	}
	return out
}
