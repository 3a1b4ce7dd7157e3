package image

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// identify returns the user and the groups that a word such as "www-data", "33" or "33:tty" names
// in the files of an image. An empty word is root.
func identify(word, passwd, group string) (r pando.ImageRoot, err error) {
	first, second, both := strings.Cut(word, ":")
	if first == "" {
		first = "0"
	}
	name, known := "", false
	for line := range strings.Lines(passwd) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 6 || f[0] != first && f[2] != first {
			continue
		}
		uid, ok1 := id(f[2])
		gid, ok2 := id(f[3])
		if ok1 && ok2 && (f[0] == first || !known) {
			name, known = f[0], true
			r.UID, r.GID, r.Home = uid, gid, f[5]
		}
		if f[0] == first {
			break
		}
	}
	if !known && first == "root" { // an image needs no /etc/passwd for it
		r.Home, known = "/", true
	}
	if !known {
		var ok bool
		if r.UID, ok = id(first); !ok {
			return r, fmt.Errorf("%w: the image has no user %q in /etc/passwd; name another, or a uid, "+
				"as `user` in the spec", pando.ErrInvalid, first)
		}
	}
	if both {
		gid, ok := groupID(second, group)
		if !ok {
			return r, fmt.Errorf("%w: the image has no group %q in /etc/group; name another, or a gid, "+
				"in `user` in the spec", pando.ErrInvalid, second)
		}
		r.GID = gid
		return r, nil
	}
	r.Groups = groupsOf(name, r.GID, group)
	return r, nil
}

// id reads a uid or gid. The kernel reads the largest as "unchanged".
func id(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil && n != math.MaxUint32
}

func groupID(name, group string) (uint32, bool) {
	for line := range strings.Lines(group) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= 3 && f[0] == name {
			return id(f[2])
		}
	}
	if name == "root" {
		return 0, true
	}
	return id(name)
}

// groupsMax is the largest number of further groups of a user.
const groupsMax = 64

func groupsOf(user string, own uint32, group string) (out []uint32) {
	if user == "" {
		return nil
	}
	for line := range strings.Lines(group) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 || !slices.Contains(strings.Split(f[3], ","), user) {
			continue
		}
		if gid, ok := id(f[2]); ok && gid != own && len(out) < groupsMax {
			out = append(out, gid)
		}
	}
	return out
}

// readTop reads a small file of an image from its highest layer that has it. It follows links
// within that layer only. A missing file is empty.
func readTop(layers []string, dir, name string) string {
	for _, layer := range layers {
		text, end := readIn(layer, dir, name)
		if end {
			return text
		}
	}
	return ""
}

// readIn reads a file of one layer. end reports that the layers below do not matter.
func readIn(layer, dir, name string) (text string, end bool) {
	root, err := os.OpenRoot(layer)
	if err != nil {
		return "", true
	}
	defer root.Close()
	st, err := root.Lstat(dir)
	if err != nil {
		return "", false
	}
	if isWhiteout(st) {
		return "", true
	}
	var y [1]byte
	n, err := unix.Lgetxattr(filepath.Join(layer, dir), opaque, y[:])
	closed := !st.IsDir() || err == nil && n == 1 && y[0] == 'y'
	st, err = root.Lstat(dir + "/" + name)
	if err != nil {
		return "", closed
	}
	if isWhiteout(st) || st.Mode()&fs.ModeNamedPipe != 0 {
		return "", true
	}
	if st, err = root.Stat(dir + "/" + name); err != nil || !st.Mode().IsRegular() {
		return "", true
	}
	f, err := root.Open(dir + "/" + name)
	if err != nil {
		return "", true
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, recordMax))
	if err != nil {
		return "", true
	}
	return string(b), true
}
