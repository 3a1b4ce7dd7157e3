package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// view is the tree of files that a program sees: the kind and the content of each path.
type view map[string]string

const aFolder = "folder"

// hide removes a path and all below it.
func (v view) hide(name string) {
	delete(v, name)
	v.empty(name)
}

// empty removes all below a path.
func (v view) empty(name string) {
	maps.DeleteFunc(v, func(p, _ string) bool { return name == "." || strings.HasPrefix(p, name+"/") })
}

// put sets a path, and makes the folders above it.
func (v view) put(name, kind string) {
	if dir := path.Dir(name); dir != "." && v[dir] != aFolder {
		v.put(dir, aFolder)
	}
	if v[name] != aFolder || kind != aFolder {
		v.hide(name)
	}
	v[name] = kind
}

// over applies the entries of a layer to a view, by the words of the format: first its whiteouts
// hide paths of the layers below, then its own files appear. Their order in the archive has no
// meaning.
func (v view) over(files []file) {
	for _, f := range files {
		dir, base := path.Dir(path.Clean(f.name)), path.Base(f.name)
		switch {
		case base == whiteoutAll:
			v.empty(dir)
		case strings.HasPrefix(base, whiteout):
			v.hide(path.Join(dir, strings.TrimPrefix(base, whiteout)))
		}
	}
	for _, f := range files {
		name := path.Clean(f.name)
		switch base := path.Base(name); {
		case base == whiteoutAll, strings.HasPrefix(base, whiteout):
			if dir := path.Dir(name); dir != "." {
				v.put(dir, aFolder)
			}
		case f.kind == tar.TypeDir:
			v.put(name, aFolder)
		case f.kind == tar.TypeSymlink:
			v.put(name, "link "+f.link)
		default:
			v.put(name, "file "+f.body)
		}
	}
}

// layerAtRandom returns entries that do not contradict each other, in any order.
func layerAtRandom(dice *rand.Rand, n int) (files []file) {
	names := []string{"etc", "a", "b"}
	kinds := map[string]byte{}
	mayPut := func(name string, kind byte) bool {
		for other, k := range kinds {
			below, above := strings.HasPrefix(name, other+"/"), strings.HasPrefix(other, name+"/")
			if other == name || below && k != tar.TypeDir || above && kind != tar.TypeDir {
				return false
			}
		}
		return true
	}
	for range 1 + dice.IntN(7) {
		parts := []string{names[dice.IntN(3)]}
		for len(parts) < 3 && dice.IntN(2) == 0 {
			parts = append(parts, append(names, "passwd")[dice.IntN(4)])
		}
		name := strings.Join(parts, "/")
		dir, base := path.Split(name)
		switch roll := dice.IntN(10); {
		case roll < 3:
			if hidden := (file{name: dir + whiteout + base}); mayPut(hidden.name, tar.TypeReg) {
				kinds[hidden.name] = tar.TypeReg
				files = append(files, hidden)
			}
		case roll < 4:
			if opq := (file{name: name + "/" + whiteoutAll}); mayPut(opq.name, tar.TypeReg) {
				kinds[opq.name] = tar.TypeReg
				files = append(files, opq)
			}
		default:
			kind := []byte{tar.TypeReg, tar.TypeReg, tar.TypeDir, tar.TypeSymlink}[dice.IntN(4)]
			if !mayPut(name, kind) {
				continue
			}
			kinds[name] = kind
			f := file{name: name, kind: kind}
			switch kind {
			case tar.TypeDir:
				f.name += "/"
			case tar.TypeSymlink:
				f.link = "b/gone"
			default:
				f.body = fmt.Sprintf("%s of layer %d", name, n)
			}
			files = append(files, f)
		}
	}
	dice.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	return files
}

// stacked mounts layers as the shim of a sandbox does, and returns the mounted folder. The highest
// layer comes first.
func stacked(t *testing.T, layers []string) string {
	t.Helper()
	at, bottom := t.TempDir(), t.TempDir() // the kernel wants two folders at least
	option := "lowerdir=" + strings.Join(append(slices.Clone(layers), bottom), ":")
	err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, option)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
		t.Skipf("needs overlayfs: %v", err)
	}
	if err != nil {
		t.Fatalf("mount %s: %v", option, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return at
}

// viewOf reads a mounted folder.
func viewOf(t *testing.T, root string) view {
	t.Helper()
	v := view{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		// The kernel lists a whiteout that hides nothing, and finds no file of that name.
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		switch {
		case d.IsDir():
			v[rel] = aFolder
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			v[rel] = "link " + to
			return err
		default:
			b, err := os.ReadFile(name)
			v[rel] = "file " + string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Random layers are unpacked and stacked by the kernel. A program sees the files that the format
// of images wants, in any order of the entries of an archive. The user table that Pando reads is
// the one that the program sees.
func TestAStackOfLayersIsWhatTheFormatWants(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 7))
			s, want := open(t), view{}
			var layers []string
			var stack [][]file
			for n := range 2 + dice.IntN(3) {
				files := layerAtRandom(dice, n)
				plain := archive(t, files...)
				dir, err := unpackOne(t, s, plain, plain)
				if err != nil {
					t.Fatalf("%+v: %v", files, err)
				}
				if slices.Contains(layers, dir) {
					continue // an equal layer
				}
				layers, stack = append([]string{dir}, layers...), append(stack, files)
				want.over(files)
			}
			root := stacked(t, layers)
			got := viewOf(t, root)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("a program sees %v,\nwant %v,\nof %+v", got, want, stack)
			}
			for _, dir := range []string{"etc", "a"} {
				seen, _ := strings.CutPrefix(want[dir+"/passwd"], "file ")
				if strings.HasPrefix(seen, "link ") || seen == aFolder {
					seen = ""
				}
				if read := readTop(layers, dir, "passwd"); read != seen {
					t.Errorf("%s/passwd is read as %q, a program sees %q,\nin %+v", dir, read, seen, stack)
				}
			}
		})
	}
}
