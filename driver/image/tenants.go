package image

import (
	"fmt"
	"os"
	"slices"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// bytesOf returns the bytes of an image that is here: its blobs, and the files of its layers.
func (s *Store) bytesOf(k *known) (n int64) {
	for at, d := range k.manifest.Layers {
		if s.has(d) {
			n += d.Size
		}
		n += s.unpackedBytes(k.config.RootFS.DiffIDs[at])
	}
	return n
}

// bytesFor returns the bytes of the images that this host has brought for a tenant, without one. A
// layer of two images counts for both.
func (s *Store) bytesFor(t pando.Tenant, without string) (n int64) {
	entries, _ := os.ReadDir(s.records())
	for _, e := range entries {
		top, err := digest("sha256:" + e.Name())
		if err != nil || top.String() == without || !slices.Contains(s.recalled(top).Tenants, t) {
			continue
		}
		if k, err := s.look(top); err == nil {
			n += s.bytesOf(k)
		}
	}
	return n
}

// roomFor returns the bytes that an image of a tenant may unpack to on this host, or an error if the
// tenant has its share already. Operators have the tenant default, and no share.
func (s *Store) roomFor(i pando.Image, k *known) (int64, error) {
	if s.TenantBytes == 0 || i.For == "" || i.For == pando.DefaultTenant {
		return s.UnpackedMax, nil
	}
	packed := int64(0)
	for _, d := range k.manifest.Layers {
		packed += max(d.Size, 0)
	}
	used := s.bytesFor(i.For, i.Digest)
	b := share.Bound{Total: s.TenantBytes, Each: s.TenantBytes}
	// Unpacked files are at least as large as the blobs, but for archives that compression enlarges.
	if err := b.Admits(share.Use{All: used, Owners: used, Own: used}, 2*packed); err != nil {
		return 0, fmt.Errorf("%w: the images of tenant %s have %d MiB on this host, of at most %d, and this "+
			"one needs %d; remove a service, and its image goes when nothing uses it",
			pando.ErrStoreFull, i.For, used>>20, s.TenantBytes>>20, 2*packed>>20)
	}
	return min(s.UnpackedMax, s.TenantBytes-used-packed), nil
}

// chargedTo notes that an image is here for a tenant.
func (s *Store) chargedTo(i pando.Image) error {
	top, err := digest(i.Digest)
	if err != nil || i.For == "" {
		return err
	}
	r := s.recalled(top)
	if slices.Contains(r.Tenants, i.For) {
		return nil
	}
	r.Tenants = append(r.Tenants, i.For)
	return s.write(top, r)
}

// crowded reports whether an image that nothing uses should go before its time: all its tenants have
// more than half of their shares here.
func (s *Store) crowded(digestText string) bool {
	top, err := digest(digestText)
	r := s.recalled(top)
	if err != nil || s.TenantBytes == 0 || len(r.Tenants) == 0 {
		return false
	}
	return !slices.ContainsFunc(r.Tenants, func(t pando.Tenant) bool {
		return t == pando.DefaultTenant || s.bytesFor(t, "") <= s.TenantBytes/2
	})
}
