package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/share"
	"pando.run/pando/driver/sandbox/image/proof"
)

// Prefixes of references that name files of the server's host.
const (
	folderPrefix  = pando.ImageFolderPrefix
	archivePrefix = pando.ImageArchivePrefix
	bundlePrefix  = pando.BundlePrefix
)

const (
	peersMax    = 8 // hosts that are asked for an image
	peerWaitMax = 5 * time.Second
)

// Blob opens a blob of an image of this store. ErrNotFound: it is not here, not whole, or of another
// image.
func (s *Store) Blob(image, text string) (*os.File, error) {
	top, err := digest(image)
	if err != nil {
		return nil, err
	}
	h, err := digest(text)
	if err != nil {
		return nil, err
	}
	if k, err := s.look(top); h != top && (err != nil || !k.has(h)) || !s.recalled(top).lends(s.sent.Of(h)) {
		return nil, fmt.Errorf("blob %s of image %s: %w", short(h), short(top), pando.ErrNotFound)
	}
	f, err := os.Open(s.blob(h))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s: %w", short(h), pando.ErrNotFound)
	}
	return f, err
}

// lends reports whether another host may have a blob as a part of the image: the image is of files of a
// host, an operator has brought it, or a repository that named it has sent the blob here.
func (r named) lends(sent proof.Record) bool {
	return r.Vouched || slices.ContainsFunc(r.Names, func(n naming) bool {
		ref, err := parse(n.Reference)
		return (pando.Image{Reference: n.Reference}).OfFiles() ||
			err == nil && sent.HasSent(ref.Context().Name())
	})
}

// has reports whether a blob is part of an image.
func (k *known) has(h v1.Hash) bool {
	return h == k.top || h == k.child || h == k.manifest.Config.Digest ||
		slices.ContainsFunc(k.manifest.Layers, func(d v1.Descriptor) bool { return d.Digest == h })
}

// sentBy reports whether a repository has sent every blob of an image, and whether each layer is known
// to unpack to the files that the configuration names. A packed store knows only the blobs.
func (k *known) sentBy(repository string, sent proof.Book, packed bool) bool {
	for _, h := range []v1.Hash{k.top, k.child, k.manifest.Config.Digest} {
		if !sent.HasSent(repository, h) {
			return false
		}
	}
	for n, d := range k.manifest.Layers {
		if !sent.HasSent(repository, d.Digest) || !packed && !sent.Unpacks(d.Digest, k.config.RootFS.DiffIDs[n]) {
			return false
		}
	}
	return true
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
	return err == nil && k.sentBy(ref.Context().Name(), s.sent, s.Packed)
}

// another is the store of another host.
type another struct {
	s *Store
	h pando.Host
	// top is the image that the blobs are of. The other host asks whether this one may have it.
	top v1.Hash
}

// String names the host.
func (a another) String() string { return "host " + string(a.h.Name) }

func (a another) open(ctx context.Context, d v1.Descriptor, offset int64) (io.ReadCloser, error) {
	r, err := a.s.Peer(ctx, a.h, a.top.String(), d.Digest.String(), offset)
	if errors.Is(err, pando.ErrNotFound) || errors.Is(err, pando.ErrForbidden) {
		err = final(err)
	}
	return r, err
}

// sources returns the stores that have an image: the first hosts that answer with its manifest,
// then its registry.
func (s *Store) sources(
	ctx context.Context, i pando.Image, top v1.Hash, hosts []pando.Host,
) ([]source, error) {
	var out []source
	asked := 0
	for _, h := range hosts {
		if s.Peer == nil || h.Name == s.Host || asked == peersMax {
			continue
		}
		asked++
		if s.peerHas(ctx, h, top) {
			out = append(out, another{s, h, top})
		}
	}
	if !i.OfFiles() {
		r, err := s.registryOf(pando.Image{Reference: i.Reference, Inside: i.Inside, Prove: i.Prove,
			For: i.For})
		if err != nil {
			return nil, err
		}
		return append(out, r), nil
	}
	if len(out) == 0 && i.Host == "" && s.missing(top) {
		return nil, fmt.Errorf("%w: no host that was asked has it; `pando snapshot ls` lists the "+
			"snapshots of all hosts", pando.ErrUnreachable)
	}
	if len(out) == 0 && s.missing(top) {
		return nil, fmt.Errorf("%w: only host %s has read it, and no host that was asked has it now; "+
			"`pando hosts` shows them, and a new deploy on the server's host reads it again",
			pando.ErrUnreachable, i.Host)
	}
	return out, nil
}

// missing reports whether a blob of an image is not in this store.
func (s *Store) missing(top v1.Hash) bool {
	k, err := s.look(top)
	if err != nil {
		return true
	}
	for n, d := range k.manifest.Layers {
		if !s.has(d) && !s.unpacked(k.config.RootFS.DiffIDs[n]) {
			return true
		}
	}
	return false
}

func (s *Store) peerHas(ctx context.Context, h pando.Host, top v1.Hash) bool {
	ctx, cancel := context.WithTimeout(ctx, peerWaitMax)
	defer cancel()
	r, err := s.Peer(ctx, h, top.String(), top.String(), 0)
	if err != nil {
		return false
	}
	r.Close()
	return true
}

// Resolve implements pando.Images.
func (s *Store) Resolve(
	ctx context.Context, by pando.Tenant, from pando.Image,
) (i pando.Image, c pando.ImageConfig, err error) {
	reference := from.Reference
	defer func() {
		if err != nil {
			err = fmt.Errorf("image %s: %w", reference, err)
		}
	}()
	done, err := s.using(ctx)
	if err != nil {
		return i, c, err
	}
	defer done()
	i.Reference = reference
	if i.OfFiles() {
		i.Host = s.Host
	} else if i.Inside, err = s.admits(from); err != nil {
		return i, c, err
	}
	top, err := s.find(ctx, by, from)
	if err != nil {
		return i, c, err
	}
	if _, err := os.Stat(s.described(top)); err == nil {
		return i, c, fmt.Errorf("%w: it is the memory of a program; `pando restore` continues it",
			pando.ErrRefused)
	}
	k, err := s.look(top)
	if err != nil {
		return i, c, err
	}
	i.Digest = top.String()
	if err := s.remember(top, by, reference); err != nil || i.OfFiles() {
		return i, configOf(k.config), err
	}
	ref, err := parse(reference)
	if err == nil {
		err = s.admit(top, by, ref.Context().Name())
	}
	return i, configOf(k.config), err
}

// admission is a repository that has let a tenant read an image.
type admission struct {
	Tenant     pando.Tenant `json:"tenant"`
	Repository string       `json:"repository"`
}

// admissionsMax bounds the admissions of one image. The oldest of the tenant with the most is
// forgotten, and costs that tenant a question. Each tenant has a place for two.
const admissionsMax = 2 * access.TenantsMax

// admit notes that a repository has let a tenant read an image.
func (s *Store) admit(h v1.Hash, by pando.Tenant, repository string) error {
	r, one := s.recalled(h), admission{by, repository}
	if slices.Contains(r.Admitted, one) {
		return nil
	}
	r.Admitted = share.Newest(append(r.Admitted, one), admissionsMax,
		func(a admission) pando.Tenant { return a.Tenant })
	return s.write(h, r)
}

// admits reports whether a tenant may use the image without a question to its registry: the repository
// has let the tenant read it before. A digest is no right: it is no secret. An operator of the hosts has
// the right to all images.
func (r named) admits(by pando.Tenant, repository string) bool {
	return by == "" || slices.Contains(r.Admitted, admission{by, repository})
}

// find returns the digest of an image, once its manifest and its configuration are here. Only an
// operator names a digest apart from the reference.
func (s *Store) find(
	ctx context.Context, by pando.Tenant, from pando.Image,
) (v1.Hash, error) {
	if from.Digest != "" {
		top, err := digest(from.Digest)
		if err != nil {
			return top, err
		}
		if _, err := s.look(top); err == nil {
			return top, nil
		}
	}
	folder, isFolder := strings.CutPrefix(from.Reference, folderPrefix)
	file, isArchive := strings.CutPrefix(from.Reference, archivePrefix)
	if !isFolder && !isArchive {
		return s.fromRegistry(ctx, by, from)
	}
	read := s.fromFolder
	if isArchive {
		folder, read = file, s.fromArchive
	}
	top, err := read(ctx, folder)
	if err == nil && from.Digest != "" && from.Digest != top.String() {
		err = fmt.Errorf("%w: it is %s now, and the image of digest %s is gone; deploy the spec again",
			pando.ErrNotFound, short(top), from.Digest)
	}
	return top, err
}

// fromRegistry stores the manifest and the configuration of an image. Its layers come when a host
// needs them. The registry sends the manifest to each tenant once, also of an image that is here for
// another one: a digest alone opens nothing.
func (s *Store) fromRegistry(
	ctx context.Context, by pando.Tenant, from pando.Image,
) (v1.Hash, error) {
	from.Prove, from.For = by != "", by
	r, err := s.registryOf(from)
	if err != nil {
		return v1.Hash{}, err
	}
	if h, err := digest(r.ref.Identifier()); err == nil {
		if _, err := s.look(h); err == nil && s.recalled(h).admits(by, r.ref.Context().Name()) {
			return h, nil // the digest names one image for ever
		}
	}
	var top v1.Hash
	err = s.attempt(ctx, []source{r}, func(source) (bool, error) {
		h, raw, err := r.resolve(ctx)
		if err == nil {
			top, err = h, errors.Join(writeFile(s.blob(h), raw), originOf(s.sent, []source{r}).came(h))
		}
		return false, err
	})
	if err == nil {
		_, err = s.describe(ctx, top, []source{r})
	}
	return top, err
}

// folder is an image layout: a folder with blobs by digest.
type folder string

// String names the folder.
func (f folder) String() string { return "folder " + string(f) }

func (f folder) open(_ context.Context, d v1.Descriptor, offset int64) (io.ReadCloser, error) {
	root, err := os.OpenRoot(string(f))
	if err != nil {
		return nil, final(err)
	}
	defer root.Close()
	file, err := root.Open(filepath.Join("blobs", d.Digest.Algorithm, d.Digest.Hex))
	if err == nil {
		_, err = file.Seek(offset, io.SeekStart)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: it has no blob %s", pando.ErrNotFound, d.Digest)
	}
	if err != nil {
		return nil, final(err)
	}
	return file, nil
}

// fromFolder copies an image out of a folder in OCI's layout.
func (s *Store) fromFolder(ctx context.Context, path string) (v1.Hash, error) {
	dir, tag := path, ""
	if _, err := os.Stat(path); err != nil {
		if at := strings.LastIndexByte(path, ':'); at > 0 {
			dir, tag = path[:at], path[at+1:]
		}
	}
	raw, err := readBounded(filepath.Join(dir, "index.json"), smallMax)
	if _, absent := os.Stat(dir); errors.Is(absent, fs.ErrNotExist) {
		return v1.Hash{}, fmt.Errorf("%s: %w on this host; `skopeo copy` or `docker buildx build -o "+
			"type=oci` writes an image layout", dir, pando.ErrNotFound)
	}
	if err != nil {
		return v1.Hash{}, fmt.Errorf("%w: %s is no image layout: it needs index.json: %w; `skopeo copy` "+
			"or `docker buildx build -o type=oci` writes one", pando.ErrInvalid, dir, err)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil {
		return v1.Hash{}, fmt.Errorf("%w: %s/index.json: %w", pando.ErrInvalid, dir, err)
	}
	d, err := tagged(index.Manifests, tag)
	if err != nil {
		return v1.Hash{}, err
	}
	from := []source{folder(dir)}
	k, err := s.describe(ctx, d.Digest, from)
	if err != nil {
		return v1.Hash{}, err
	}
	for _, d := range k.manifest.Layers {
		if err := s.fetch(ctx, d, from); err != nil {
			return v1.Hash{}, err
		}
	}
	return d.Digest, nil
}

const refName = "org.opencontainers.image.ref.name"

// tagged returns the image of a layout with a tag, or its only one.
func tagged(all []v1.Descriptor, tag string) (v1.Descriptor, error) {
	var tags []string
	for _, d := range all {
		if tag != "" && d.Annotations[refName] == tag {
			return d, nil
		}
		if len(tags) < offersMax {
			tags = append(tags, d.Annotations[refName])
		}
	}
	switch {
	case tag == "" && len(all) == 1:
		return all[0], nil
	case len(all) == 0:
		return v1.Descriptor{}, fmt.Errorf("%w: the layout has no image", pando.ErrInvalid)
	}
	return v1.Descriptor{}, fmt.Errorf("%w: the layout has no tag %q: name one of %s as "+
		"oci:FOLDER:TAG", pando.ErrNotFound, tag, strings.Join(tags, ", "))
}

// fromArchive copies an image out of a file of `docker save`. Its layers are stored as they are.
func (s *Store) fromArchive(ctx context.Context, path string) (v1.Hash, error) {
	if _, err := os.Stat(path); err != nil {
		return v1.Hash{}, fmt.Errorf("%w: %w; `docker save` or `podman save` writes such a file",
			pando.ErrNotFound, err)
	}
	plain, remove, err := s.plainArchive(ctx, path)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("read %s: %w", path, err)
	}
	defer remove()
	if err := checkSaved(ctx, plain); err != nil {
		return v1.Hash{}, fmt.Errorf("%s is no file of `docker save` with one image: %w", path, err)
	}
	img, err := tarball.ImageFromPath(plain, nil)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("%w: %s is no file of `docker save` with one image: %w",
			pando.ErrInvalid, path, err)
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("%w: its configuration: %w", pando.ErrInvalid, err)
	}
	layers, err := img.Layers()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("%w: its layers: %w", pando.ErrInvalid, err)
	}
	config, err := s.add(raw)
	if err != nil {
		return v1.Hash{}, err
	}
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Size: int64(len(raw)), Digest: config},
	}
	for _, l := range layers {
		d, err := s.copyLayer(ctx, l)
		if err != nil {
			return v1.Hash{}, err
		}
		m.Layers = append(m.Layers, d)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return v1.Hash{}, err
	}
	return s.add(b)
}

// copyLayer stores the archive of a layer without compression.
func (s *Store) copyLayer(ctx context.Context, l v1.Layer) (v1.Descriptor, error) {
	files, err := l.DiffID()
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%w: a layer: %w", pando.ErrInvalid, err)
	}
	if _, err := digest(files.String()); err != nil {
		return v1.Descriptor{}, err
	}
	d := v1.Descriptor{MediaType: types.OCIUncompressedLayer, Digest: files}
	if st, err := os.Stat(s.blob(files)); err == nil {
		d.Size = st.Size()
		return d, nil
	}
	r, err := l.Uncompressed()
	if err != nil {
		return d, fmt.Errorf("%w: a layer: %w", pando.ErrInvalid, err)
	}
	defer r.Close()
	f, err := os.CreateTemp(s.blobs(), ".new-*")
	if err != nil {
		return d, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if d.Size, err = copyTo(ctx, s, f, r); err != nil {
		return d, fmt.Errorf("copy a layer: %w", err)
	}
	got, _, err := v1.SHA256(io.NewSectionReader(f, 0, d.Size))
	if err == nil && got != files {
		err = wrongDigest(files, got)
	}
	if err == nil {
		err = errors.Join(f.Sync(), os.Rename(f.Name(), s.blob(files)))
	}
	return d, err
}
