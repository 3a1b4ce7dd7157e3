package image

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
)

// A digest is no right, and neither is a manifest: anybody can write one that names the layer of
// another tenant. So a blob that is here counts as here for a tenant's image only if the repository of
// the image has once sent all its bytes. Else it comes again, and its hash is the proof. Who has not
// the bytes cannot send them.

// proof is what is known of a blob beside its bytes.
type proof struct {
	// Repositories have sent it whole.
	Repositories []string `json:"repositories,omitempty"`
	// Files is the digest of the archive to which it was unpacked.
	Files string `json:"files,omitempty"`
}

// proofsMax bounds the repositories of one blob. A forgotten one sends it again.
const proofsMax = 500

func (s *vault) proofs() string           { return filepath.Join(s.Dir, "proofs") }
func (s *vault) proofOf(h v1.Hash) string { return filepath.Join(s.proofs(), h.Hex) }

// proved reads what is known of a blob. A broken file counts as empty.
func (s *vault) proved(h v1.Hash) (p proof) {
	if b, err := readBounded(s.proofOf(h), recordMax); err == nil {
		_ = json.Unmarshal(b, &p)
	}
	return p
}

// prove notes what is known of a blob.
func (s *vault) prove(h v1.Hash, change func(*proof)) error {
	p := s.proved(h)
	change(&p)
	p.Repositories = p.Repositories[max(0, len(p.Repositories)-proofsMax):]
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writeFile(s.proofOf(h), b)
}

// repositoryOf returns the repository of an image among its sources, and whether that has to prove
// that it has each blob.
func repositoryOf(from []source) (repository string, must bool) {
	for _, src := range from {
		if r, ok := src.(*registry); ok {
			return r.ref.Context().Name(), r.proves
		}
	}
	return "", false
}

// mayUse reports whether a blob that is here may be used for an image with these sources.
func (s *vault) mayUse(h v1.Hash, from []source) bool {
	repository, must := repositoryOf(from)
	return !must || slices.Contains(s.proved(h).Repositories, repository)
}

// came notes that a blob came from the sources of an image. Another host sends only what the
// repository has sent there.
func (s *vault) came(h v1.Hash, from []source) error {
	repository, _ := repositoryOf(from)
	if repository == "" || slices.Contains(s.proved(h).Repositories, repository) {
		return nil
	}
	return s.prove(h, func(p *proof) { p.Repositories = append(p.Repositories, repository) })
}

// unpacks reports whether a blob is known to unpack to an archive.
func (s *vault) unpacks(d v1.Descriptor, files v1.Hash) bool {
	return s.proved(d.Digest).Files == files.String()
}

// Proven implements pando.Images.
func (s *Store) Proven(i pando.Image) bool {
	if i.OfFiles() {
		return true
	}
	ref, err := parse(i.Reference)
	top, bad := digest(i.Digest)
	if errors.Join(err, bad) != nil {
		return false
	}
	k, err := s.look(top)
	return err == nil && s.provenBy(k, ref.Context().Name())
}

// provenBy reports whether a repository has sent every blob of an image, and whether each layer is
// known to unpack to the files that the configuration names.
func (s *Store) provenBy(k *known, repository string) bool {
	for _, h := range []v1.Hash{k.top, k.child, k.manifest.Config.Digest} {
		if !slices.Contains(s.proved(h).Repositories, repository) {
			return false
		}
	}
	for n, d := range k.manifest.Layers {
		p := s.proved(d.Digest)
		if !slices.Contains(p.Repositories, repository) ||
			!s.Packed && p.Files != k.config.RootFS.DiffIDs[n].String() {
			return false
		}
	}
	return true
}

// mayLend reports whether another host may have a blob as a part of an image: the image is of files of
// a host, an operator has brought it, or a repository that named it has sent the blob here.
func (s *Store) mayLend(top, h v1.Hash) bool {
	r := s.recalled(top)
	if r.Vouched {
		return true
	}
	all := s.proved(h).Repositories
	for _, reference := range r.References {
		if (pando.Image{Reference: reference}).OfFiles() {
			return true
		}
		if ref, err := parse(reference); err == nil && slices.Contains(all, ref.Context().Name()) {
			return true
		}
	}
	return false
}
