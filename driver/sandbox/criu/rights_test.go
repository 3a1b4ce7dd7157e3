package criu

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"pando.run/pando"
)

// put is a field of a message that a test writes: a number, a text or a message.
type put struct {
	field protowire.Number
	v     any
}

func encode(all ...put) (b []byte) {
	for _, p := range all {
		switch v := p.v.(type) {
		case int:
			b = protowire.AppendVarint(protowire.AppendTag(b, p.field, protowire.VarintType), uint64(v))
		case string:
			b = protowire.AppendString(protowire.AppendTag(b, p.field, protowire.BytesType), v)
		case []byte:
			b = protowire.AppendBytes(protowire.AppendTag(b, p.field, protowire.BytesType), v)
		}
	}
	return b
}

// imageOf returns a file of CRIU with some messages.
func imageOf(all ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, commonMagic)
	b = append(b, "kind"...)
	for _, one := range all {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(one))), one...)
	}
	return b
}

const uid, gid = 65534, 65533

// creds returns the credentials of a thread as Pando's programs have them, and more fields.
func creds(more ...put) []byte {
	var all []put
	for n := protowire.Number(1); n <= 8; n += 2 {
		all = append(all, put{n, uid}, put{n + 1, gid})
	}
	for _, n := range []protowire.Number{9, 10, 11, 12, 19} {
		all = append(all, put{n, 0}, put{n, 0})
	}
	all = append(all, put{13, 0}, put{18, 1})
	for _, m := range more {
		all = slices.DeleteFunc(all, func(p put) bool { return p.field == m.field })
		if m.v != nil {
			all = append(all, m)
		}
	}
	return encode(all...)
}

func core(c []byte, more ...put) []byte {
	return imageOf(encode(put{1, 1}, put{3, encode(put{1, 1}, put{14, 0})},
		put{5, encode(append([]put{{4, 0}, {10, c}}, more...)...)}))
}

func namespaced(net int) []byte {
	return encode(put{1, 2}, put{5, 1}, put{6, net}, put{9, 6}, put{10, 7})
}

// frozenFiles returns a program that a dump could have: two threads, two filters, some files.
func frozenFiles(open string) map[string][]byte {
	regular := func(id int, name string, flags int, more ...put) []byte {
		return encode(put{1, 1}, put{2, id}, put{3, encode(append([]put{{1, id}, {2, flags}, {6, name}},
			more...)...)})
	}
	good := core(creds(), put{11, 2}, put{12, 1})
	return map[string][]byte{
		"inventory.img": append(binary.LittleEndian.AppendUint32(nil, 0x58313116),
			imageOf(encode(put{1, 2}, put{3, namespaced(2)}))[8:]...),
		"pstree.img":    imageOf(encode(put{1, 1000}, put{5, 1000}, put{5, 1001})),
		"core-1000.img": good, "core-1001.img": core(creds()), // the leader's cover it
		"ids-1000.img": imageOf(namespaced(2)),
		"seccomp.img": imageOf(encode(put{1, encode(put{1, "ours"}, put{3, 1})},
			put{1, encode(put{1, "its own"}, put{2, 0})})),
		"files.img": imageOf(regular(1, "/dev/null", unix.O_RDWR), regular(2, open, unix.O_RDONLY),
			regular(3, "/gone", unix.O_RDWR), regular(4, "/proc/1000/maps", 0), regular(5, "/", 0)),
		"remap-fpath.img":  imageOf(encode(put{1, 3}, put{2, 9}, put{3, 1})),
		"ghost-file-9.img": append(imageOf(encode(put{3, unix.S_IFREG | 0o644})), "a content"...),
		"mm-1000.img": imageOf(encode(put{14, encode(put{4, 2}, put{5, 1}, put{6, 2}, put{7, 65},
			put{10, 0})})),
		"pages-1.img": []byte("memory"), "private.tar": nil, "pando.json": nil,
	}
}

func writeAll(t *testing.T, files map[string][]byte) pando.Frozen {
	t.Helper()
	dir := t.TempDir()
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pando.Frozen{Inside: os.Getpid(), PID: 1000, UID: uid, GID: gid, Dir: dir,
		Filter: []byte("ours")}
}

// forgedFile is a file of CRIU that gives a process more than its spec does.
type forgedFile struct {
	name string
	b    []byte
	want string
}

func forgedFiles(free, secret string) map[string]forgedFile {
	threads := []put{{11, 2}, {12, 1}}
	file := func(kind int, more ...put) []byte {
		return imageOf(encode(put{1, kind}, put{2, 1}, put{3, encode(append([]put{{1, 1}}, more...)...)}))
	}
	return map[string]forgedFile{
		"root":           {"core-1001.img", core(creds(put{3, 0}), threads...), "the user 0"},
		"another group":  {"core-1000.img", core(creds(put{8, 0}), threads...), "the group 0"},
		"no user":        {"core-1000.img", core(creds(put{1, nil}), threads...), "the user 0"},
		"two users":      {"core-1000.img", core(append(creds(), encode(put{1, uid})...), threads...), "no file of CRIU"},
		"a large user":   {"core-1000.img", core(creds(put{1, uid + 1<<32}), threads...), "no file of CRIU"},
		"further groups": {"core-1000.img", core(creds(put{14, 0}), threads...), "further groups"},
		"a capability":   {"core-1000.img", core(creds(put{11, 1 << 21}), threads...), "capabilities"},
		"packed ones":    {"core-1000.img", core(creds(put{12, "\x00\x01"}), threads...), "capabilities"},
		"new privileges": {"core-1000.img", core(creds(put{18, nil}), threads...), "no_new_privs"},
		"secure bits":    {"core-1000.img", core(creds(put{13, 1}), threads...), "secure bits"},
		"a profile":      {"core-1000.img", core(creds(put{15, "another"}), threads...), "profile"},
		"no credentials": {"core-1000.img", imageOf(encode(put{1, 1}, put{5, encode(threads...)})), "without a user"},
		"no thread":      {"core-1000.img", imageOf(encode(put{1, 1})), "without its rights"},
		"a bare thread": {"seccomp.img", imageOf(encode(put{1, encode(put{1, "ours"})},
			put{1, encode(put{1, "its own"}, put{2, 0})})), "without a filter"},
		"a dead thread that runs": {"core-1001.img", imageOf(encode(put{3, encode(put{1, 6})},
			put{5, encode(put{10, creds(put{1, 0})})})), "the user 0"},
		"a bare leader": {"core-1000.img", core(creds()), "without a filter"},
		"two processes": {"pstree.img", imageOf(encode(put{1, 1000}, put{5, 1000}),
			encode(put{1, 1001}, put{5, 1001})), "without a filter"},
		"a thread of two": {"pstree.img", imageOf(encode(put{1, 1000}, put{5, 1000}, put{5, 1001}),
			encode(put{1, 1001}, put{5, 1001})), "two threads"},
		"filters off":     {"core-1000.img", core(creds(), put{11, 0}, put{12, 1}), "without a filter"},
		"a foreign one":   {"seccomp.img", imageOf(encode(put{1, encode(put{1, "lax"})}, put{1, encode(put{1, "lax"}, put{2, 0})})), "not that of this build"},
		"a circle":        {"seccomp.img", imageOf(encode(put{1, encode(put{1, "ours"}, put{2, 1})})), "follows"},
		"real time":       {"core-1000.img", imageOf(encode(put{5, encode(put{4, unix.SCHED_FIFO}, put{10, creds()})})), "scheduling policy 1"},
		"a new network":   {"ids-1000.img", imageOf(namespaced(9)), "namespaces of its own"},
		"another program": {"pstree.img", imageOf(encode(put{1, 1}, put{5, 1})), "the number 1"},
		"mounts":          {"mountpoints-13.img", imageOf(), "mountpoints-13.img"},
		"older files":     {"reg-files.img", imageOf(), "reg-files.img"},
		"a raw socket":    {"files.img", file(10), "kind 10"},
		"a namespace":     {"files.img", file(14), "kind 14"},
		"a terminal":      {"files.img", file(11), "kind 11"},
		"from outside":    {"files.img", file(1, put{6, "/x"}, put{9, 1}), "outside the sandbox"},
		"a secret file":   {"files.img", file(1, put{6, secret}), "may not open it"},
		"by its root":     {"files.img", file(1, put{6, "/proc/1000/root" + secret}), "may not open it"},
		"write":           {"files.img", file(1, put{6, free}, put{2, unix.O_WRONLY}), "may not open it"},
		"a mapping": {"mm-1000.img", imageOf(encode(put{14, encode(put{4, 2}, put{5, 3}, put{6, 1},
			put{7, 129}, put{10, unix.O_RDWR})})), "may not open it"},
		"a linked file":  {"remap-fpath.img", imageOf(encode(put{1, 3}, put{3, 0})), "kind 0"},
		"a ghost device": {"ghost-file-9.img", imageOf(encode(put{3, unix.S_IFBLK | 0o666})), "a device"},
		"a ghost setuid": {"ghost-file-9.img", imageOf(encode(put{3, unix.S_IFREG | 0o4755})), "rights of its owner"},
		"cut":            {"core-1000.img", core(creds())[:40], "no file of CRIU"},
		"empty":          {"core-1000.img", nil, "no file of CRIU"},
	}
}

// Anybody can write the files of a frozen program. A restore as root takes only those that give a
// process what Pando gives it.
func TestAFrozenProgramHasTheRightsOfItsServiceOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	folder, err := os.MkdirTemp("/tmp", "pando-criu-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	free, secret := filepath.Join(folder, "free"), filepath.Join(folder, "secret")
	if err := errors.Join(os.Chmod(folder, 0o755), os.WriteFile(free, nil, 0o644),
		os.Chmod(free, 0o644), os.WriteFile(secret, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := check(writeAll(t, frozenFiles(free))); err != nil {
		t.Fatalf("a program as Pando starts it: %v", err)
	}
	for what, c := range forgedFiles(free, secret) {
		files := frozenFiles(free)
		files[c.name] = c.b
		err := check(writeAll(t, files))
		if c.want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!errors.Is(err, pando.ErrForbidden) && !errors.Is(err, pando.ErrRefused) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// A thaw looks before CRIU runs.
func TestAThawChecksTheFilesFirst(t *testing.T) {
	files := frozenFiles("/dev/null")
	files["core-1000.img"] = core(creds(put{1, 0}), put{11, 2}, put{12, 1})
	if err := (Tool{}).Thaw(t.Context(), writeAll(t, files)); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a thaw of root: %v", err)
	}
}

func FuzzEntries(f *testing.F) {
	f.Add(core(creds()))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "x.img")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = entries(path)
		_, _ = firstEntry(path)
	})
}
