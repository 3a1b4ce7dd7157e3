package recipe

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Built is an image in a file of `docker save`.
type Built struct {
	File   string `json:"file"`
	Digest string `json:"digest"` // of the configuration, which names the files too
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"` // of its files, without those of the base
}

// Build writes the image of a recipe to a file, under a tag. The file appears whole or not at all.
func Build(ctx context.Context, r Recipe, file, tag string) (b Built, err error) {
	ref, err := name.NewTag(tag)
	if err != nil {
		return b, fmt.Errorf("tag %q: %w", tag, err)
	}
	base, err := r.base()
	if err != nil {
		return b, fmt.Errorf("base %s: %w", r.Base, err)
	}
	folders, err := foldersOf(base)
	if err != nil {
		return b, fmt.Errorf("base %s: %w", r.Base, err)
	}
	system := &tree{entries: map[string]entry{}, folders: folders}
	own := &tree{entries: map[string]entry{}, folders: folders}
	if err := errors.Join(r.system(system), r.own(own)); err != nil {
		return b, err
	}
	img := base
	for _, t := range []*tree{system, own} {
		if img, err = t.onto(ctx, img); err != nil {
			return b, err
		}
		b.Files, b.Bytes = b.Files+len(t.entries), b.Bytes+t.bytes
	}
	if img, err = r.configure(img); err != nil {
		return b, err
	}
	digest, err := img.ConfigName()
	if err != nil {
		return b, err
	}
	b.File, b.Digest = file, digest.String()
	return b, writeTo(file, func(part io.Writer) error { return tarball.Write(ref, img, part) })
}

// writeTo writes a file as a whole, or not at all. No file beside it is touched.
func writeTo(file string, write func(io.Writer) error) error {
	part, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".part-")
	if err != nil {
		return err
	}
	err = errors.Join(write(part), part.Chmod(0o644), part.Close())
	if err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(part.Name()))
	}
	return nil
}

// Wrote reports whether Build wrote a file: an archive of an image without a time.
func Wrote(file string) bool {
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return false
	}
	c, err := img.ConfigFile()
	return err == nil && c.Created.IsZero()
}

// base opens the image under the recipe's.
func (r Recipe) base() (v1.Image, error) {
	beside := func(file string) string {
		if filepath.IsAbs(file) {
			return file
		}
		return filepath.Join(r.dir, file)
	}
	if r.Base == "" {
		return empty.Image, nil
	}
	if file, ok := strings.CutPrefix(r.Base, "docker-archive:"); ok {
		return tarball.ImageFromPath(beside(file), nil)
	}
	dir, ok := strings.CutPrefix(r.Base, "oci:")
	if !ok {
		return nil, fmt.Errorf("want docker-archive:FILE or oci:FOLDER; `docker pull` and `docker " +
			"save` write the file of an image of a registry")
	}
	index, err := layout.ImageIndexFromPath(beside(dir))
	if err != nil {
		return nil, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) != 1 || !m.Manifests[0].MediaType.IsImage() {
		return nil, fmt.Errorf("it has %d images: want a layout with one", len(m.Manifests))
	}
	return index.Image(m.Manifests[0].Digest)
}

// foldersOf returns the folders of an image. Most images hold few thousand.
func foldersOf(img v1.Image) (map[string]bool, error) {
	out := map[string]bool{}
	layers, err := img.Layers()
	if err != nil || len(layers) == 0 {
		return out, err
	}
	files := mutate.Extract(img)
	defer files.Close()
	all := tar.NewReader(files)
	for n := 0; ; n++ {
		h, err := all.Next()
		if err == io.EOF {
			return out, nil
		}
		if err == nil && n > 10*entriesMax {
			err = fmt.Errorf("more than %d files", 10*entriesMax)
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeDir {
			out[strings.Trim(filepath.Clean("/"+h.Name), "/")] = true
		}
	}
}

// system adds the packages and the programs of a recipe, which change rarely.
func (r Recipe) system(t *tree) error {
	if len(r.Packages) > 0 {
		all, err := installed()
		if err != nil {
			return err
		}
		if err := all.add(t, r.Packages); err != nil {
			return err
		}
	}
	if len(r.Programs) == 0 {
		return nil
	}
	l, err := newLibraries()
	if err != nil {
		return err
	}
	for _, program := range r.Programs {
		more, err := l.of(program)
		if err != nil {
			return fmt.Errorf("programs: %w", err)
		}
		for _, file := range append(more, program) {
			if err := t.host(file); err != nil {
				return fmt.Errorf("programs: %s: %w", program, err)
			}
		}
	}
	return nil
}

// own adds the files and the users of a recipe.
func (r Recipe) own(t *tree) error {
	for _, from := range slices.Sorted(maps.Keys(r.Files)) {
		at := from
		if !filepath.IsAbs(from) {
			at = filepath.Join(r.dir, from)
		}
		if err := t.copy(at, r.Files[from]); err != nil {
			return fmt.Errorf("files: %w", err)
		}
	}
	if len(r.Users) == 0 {
		return nil
	}
	passwd, group := "root:x:0:0::/:/bin/sh\n", "root:x:0:\n"
	for _, user := range slices.Sorted(maps.Keys(r.Users)) {
		passwd += fmt.Sprintf("%s:x:%d:%[2]d::/:/bin/false\n", user, r.Users[user])
		group += fmt.Sprintf("%s:x:%d:\n", user, r.Users[user])
	}
	text := func(name, s string) error {
		return errors.Join(t.above(name),
			t.put(name, entry{mode: 0o644, text: []byte(s), size: int64(len(s))}))
	}
	return errors.Join(text("/etc/passwd", passwd), text("/etc/group", group))
}

// onto adds a tree to an image as a layer. An image of an empty tree stays as it is.
func (t *tree) onto(ctx context.Context, img v1.Image) (v1.Image, error) {
	if len(t.entries) == 0 {
		return img, nil
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		stop := context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
		go func() {
			defer stop()
			w.CloseWithError(t.write(w))
		}()
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layer)
}

// configure writes the words of a recipe over those of its base.
func (r Recipe) configure(img v1.Image) (v1.Image, error) {
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Created, c.History = "linux", v1.Time{}, nil
	if c.Architecture == "" {
		c.Architecture = runtime.GOARCH
	}
	to := &c.Config
	if r.Entrypoint != nil {
		to.Entrypoint, to.Cmd = r.Entrypoint, nil
	}
	if r.Command != nil {
		to.Cmd = r.Command
	}
	for _, k := range slices.Sorted(maps.Keys(r.Environment)) {
		to.Env = append(slices.DeleteFunc(to.Env, func(e string) bool {
			return strings.HasPrefix(e, k+"=")
		}), k+"="+r.Environment[k])
	}
	for word, value := range map[*string]string{&to.WorkingDir: r.WorkingDir, &to.User: r.User,
		&to.StopSignal: r.StopSignal} {
		if value != "" {
			*word = value
		}
	}
	for _, p := range r.Ports {
		if to.ExposedPorts == nil {
			to.ExposedPorts = map[string]struct{}{}
		}
		if !strings.Contains(p, "/") {
			p += "/tcp"
		}
		to.ExposedPorts[p] = struct{}{}
	}
	if to.Labels == nil && len(r.Labels) > 0 {
		to.Labels = map[string]string{}
	}
	maps.Copy(to.Labels, r.Labels)
	return mutate.ConfigFile(img, c)
}
