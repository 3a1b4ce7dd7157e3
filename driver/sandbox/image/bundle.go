package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"pando.run/pando"
)

// Bounds of a bundle: a program with its files. Larger data belongs on the hosts, or in an image.
const (
	bundleBytesMax   = 512 << 20
	bundleEntriesMax = 50_000
	readable         = 0o004 // by everyone: instances of one host have different users
)

// bundleLeft are the names that a bundle leaves out: the history of the sources, and the spec. A
// change of either alone is no new program.
var bundleLeft = map[string]bool{".git": true, "pando.yaml": true, "pando.yml": true}

// Bundle copies a folder into this store as an image of one layer, and returns its digest. The same
// files give the same digest: times and owners do not count. It also returns the paths that it left
// out although a program could miss them: private files, sockets, pipes and devices.
func (s *Store) Bundle(ctx context.Context, folder string) (b pando.Bundle, left []string,
	err error) {
	done, err := s.using(ctx)
	if err != nil {
		return b, nil, err
	}
	defer done()
	p := &packer{ctx: ctx, left: bundleBytesMax}
	top, _, err := s.pack(p, folder)
	left = p.without
	if err == nil {
		err = s.remember(top, "", bundlePrefix+folder)
	}
	if err != nil {
		return b, nil, fmt.Errorf("bundle %s: %w", folder, err)
	}
	return pando.Bundle{Folder: folder, Digest: top.String(), Host: s.Host}, left, nil
}

// pack stores a folder as an image of one layer, and returns the digests of the image and of the
// layer.
func (s *vault) pack(p *packer, folder string) (top, files v1.Hash, err error) {
	if err := s.room(0); err != nil {
		return top, files, err
	}
	f, err := os.CreateTemp(s.blobs(), ".new-*")
	if err != nil {
		return top, files, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	sum := sha256.New()
	p.out = tar.NewWriter(io.MultiWriter(f, sum))
	if err := p.all(folder); err != nil {
		return top, files, noSpace(err)
	}
	files = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	d := v1.Descriptor{MediaType: types.OCIUncompressedLayer, Digest: files}
	if d.Size, err = f.Seek(0, io.SeekEnd); err != nil {
		return top, files, err
	}
	if err := errors.Join(s.room(0), f.Sync(), os.Rename(f.Name(), s.blob(files))); err != nil {
		return top, files, noSpace(err)
	}
	config, err := json.Marshal(v1.ConfigFile{OS: "linux", Architecture: s.Architecture,
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{files}}})
	if err != nil {
		return top, files, err
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Size: int64(len(config))},
		Layers: []v1.Descriptor{d}}
	if m.Config.Digest, err = s.add(config); err != nil {
		return top, files, err
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return top, files, err
	}
	top, err = s.add(manifest)
	return top, files, err
}

// packer writes the files of a folder as an archive, ordered by path.
type packer struct {
	ctx     context.Context
	out     *tar.Writer
	left    int64 // bytes that files may still have
	entries int
	without []string
}

// withoutMax bounds the list of paths that were left out.
const withoutMax = 20

func (p *packer) all(folder string) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("%w: %w; name a folder of this host, such as `bundle: .`", pando.ErrInvalid,
			err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil {
			err = p.ctx.Err()
		}
		if err != nil {
			return err
		}
		if bundleLeft[e.Name()] && (e.IsDir() || path.Dir(name) == ".") {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return p.add(root, name, e)
	})
	if err != nil {
		return err
	}
	return p.out.Close()
}

// add writes one entry of the folder.
func (p *packer) add(root *os.Root, name string, e fs.DirEntry) error {
	if p.entries++; p.entries > bundleEntriesMax {
		return fmt.Errorf("%w: more than %d files; name the folder of the program alone, or "+
			"make an image", pando.ErrTooLarge, bundleEntriesMax)
	}
	st, err := e.Info()
	if err != nil {
		return fmt.Errorf("%w: %s changed while it was read; deploy again: %w", pando.ErrConflict, name,
			err)
	}
	h := &tar.Header{Name: name, Mode: int64(st.Mode().Perm() & 0o755), ModTime: time.Unix(0, 0),
		Format: tar.FormatPAX}
	open := st.Mode()&readable != 0
	switch {
	case strings.HasPrefix(path.Base(name), whiteout): // it would hide files
		p.leave(name)
		return nil
	case st.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
		if name != "." && !open {
			p.leave(name)
			return fs.SkipDir
		}
	case st.Mode()&fs.ModeSymlink != 0:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		h.Linkname, err = root.Readlink(name)
	case st.Mode().IsRegular() && open:
		return p.file(root, h)
	default:
		p.leave(name)
		return nil
	}
	if err != nil {
		return err
	}
	return p.out.WriteHeader(h)
}

// leave notes a path that is not in the bundle.
func (p *packer) leave(name string) {
	if len(p.without) < withoutMax {
		p.without = append(p.without, name)
	}
}

// file writes a file with the size that it has once it is open.
func (p *packer) file(root *os.Root, h *tar.Header) error {
	// A pipe may have taken the place of the file: it must not block the deploy.
	f, err := root.OpenFile(h.Name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return fmt.Errorf("%w: %s changed while it was read; deploy again", pando.ErrConflict, h.Name)
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size()
	if p.left -= h.Size; p.left < 0 {
		return fmt.Errorf("%w: its files have more than %d MiB at %s; name the folder of the program "+
			"alone, or make an image", pando.ErrTooLarge, bundleBytesMax>>20, h.Name)
	}
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(p.out, &bounded{r: io.LimitReader(f, h.Size), left: h.Size + 1, ctx: p.ctx})
	if err == nil && n < h.Size {
		err = fmt.Errorf("%w: %s became shorter while it was read; deploy again", pando.ErrConflict,
			h.Name)
	}
	return err
}

// called returns an image or a bundle in words.
func called(reference string) string {
	if folder, ok := strings.CutPrefix(reference, bundlePrefix); ok {
		return "bundle " + folder
	}
	return "image " + reference
}
