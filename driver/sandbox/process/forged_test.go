package process

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"pando.run/pando"
)

// forge makes the program of a snapshot root: it sets the users of its thread to 0.
func forge(t *testing.T, core string) {
	t.Helper()
	b, err := os.ReadFile(core)
	if err != nil {
		t.Fatal(err)
	}
	own := protowire.AppendVarint(nil, uidFirst)
	n := bytes.Count(b, own)
	for p := uint64(uidFirst); p < uidFirst+10 && n < 8; p++ { // of the slot
		own = protowire.AppendVarint(nil, p)
		n = bytes.Count(b, own)
	}
	if n < 8 {
		t.Fatal("the credentials are not in the file")
	}
	root := bytes.Repeat([]byte{0x80}, len(own)-1) // a varint of 0 in the same number of bytes
	b = bytes.ReplaceAll(b, own, append(root, 0))
	if err := os.WriteFile(core, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A file chooses no right of the process that is made from it, whichever way it comes.
func TestAForgedProgramDoesNotBecomeRoot(t *testing.T) {
	d := frozenDriver(t)
	d.Seal = func(int, string) error { return nil }
	b := run(t, d, nil, "python3", "-c", counter, "1")
	awaitLine(t, b, "started")
	dir := filepath.Join(d.Layers, "forged")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Freeze(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	s, err := os.ReadFile(filepath.Join(dir, frozenFile))
	if err != nil {
		t.Fatal(err)
	}
	cores, err := filepath.Glob(filepath.Join(dir, "core-*.img"))
	if err != nil || len(cores) != 1 {
		t.Fatalf("the program has the files %v, %v; want one", cores, err)
	}
	forge(t, cores[0])
	spec := pando.Spec{Name: "web", Command: []string{"python3", "-c", counter, "1"},
		WorkingDir: "/", StopSeconds: 0.3}.WithDefaults()
	start := func(words string) {
		t.Helper()
		var moved bytes.Buffer
		out := tar.NewWriter(&moved)
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := sendFile(out, filepath.Join(dir, frozenFile)); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if f.Name() != frozenFile {
				if err := sendFile(out, filepath.Join(dir, f.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		i := pando.Instance{ID: "web-2", Service: spec.Key()}
		arrives := i
		arrives.Move = &pando.MoveMark{ID: "m1", From: "h2"}
		for how, one := range map[string]pando.SandboxSpec{
			"restored": {Instance: i, Spec: spec, VIP4: vip, From: filepath.Base(dir)},
			"moved":    {Instance: arrives, Spec: spec, VIP4: vip, Arrives: &moved},
		} {
			c, err := d.Start(t.Context(), one)
			if !errors.Is(err, pando.ErrForbidden) || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v, want %q", how, err, words)
			}
			if err == nil {
				_ = c.Stop(t.Context())
			}
		}
	}
	start("the user 0, and the service has")
	// The description agrees now.
	s = bytes.ReplaceAll(s, protoUID(s), []byte(`"uid":0,"gid":0`))
	if err := os.WriteFile(filepath.Join(dir, frozenFile), s, 0o600); err != nil {
		t.Fatal(err)
	}
	start("it was frozen as user 0")
	spec.User = "nobody"
	start("the user \"nobody\" of the spec has")
}

// protoUID returns the words of a description about its user.
func protoUID(s []byte) []byte {
	from := bytes.Index(s, []byte(`"uid":`))
	return s[from : from+bytes.Index(s[from:], []byte(`,"pipe"`))]
}

// unpackAll unpacks an archive with some entries into a sandbox.
func unpackAll(t *testing.T, at string, all []tar.Header) error {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, privateFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := tar.NewWriter(f)
	for _, h := range all {
		if h.Typeflag == tar.TypeReg {
			h.Size = 1
		}
		h.Mode |= 0o755
		if err := out.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = out.Write([]byte("x"))
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return unpackPrivate(at, dir)
}

// The files in memory of a snapshot reach no other file of the sandbox: not of the host's folders,
// volumes and kernel.
func TestFilesInMemoryStayInTheirFolders(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	at := t.TempDir()
	for _, dir := range []string{"tmp", "run", "home", "proc", "root"} {
		if err := os.Mkdir(filepath.Join(at, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"tmp", "run"} {
		if err := unix.Mount("tmpfs", filepath.Join(at, dir), "tmpfs", 0, ""); err != nil {
			t.Skip("needs to mount a tmpfs: ", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(filepath.Join(at, dir), unix.MNT_DETACH) })
	}
	volume := filepath.Join(at, "tmp/volume")
	if err := errors.Join(os.Mkdir(volume, 0o755), unix.Mount("tmpfs", volume, "tmpfs", 0, ""),
		os.MkdirAll(filepath.Join(at, "run/pando"), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(volume, unix.MNT_DETACH) })
	unpack := func(all ...tar.Header) error { return unpackAll(t, at, all) }
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	suid := file("tmp/program")
	suid.Mode = 0o4000
	if err := unpack(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/"}, file("tmp/a"),
		link("tmp/link", "a"), suid); err != nil {
		t.Fatalf("files as Pando packs them: %v", err)
	}
	if st, err := os.Stat(filepath.Join(at, "tmp/program")); err != nil ||
		st.Mode()&os.ModeSetuid != 0 {
		t.Errorf("a program with the rights of its owner: %v, %v", st, err)
	}
	var device uint64
	if inMemory(at, &device) {
		t.Skip("needs temporary files on a disk")
	}
	for what, all := range map[string][]tar.Header{
		"a file of the kernel": {file("proc/settings")},
		"a folder of the host": {file("root/authorized_keys")},
		"another one":          {file("home/x")},
		"a volume":             {file("tmp/volume/x")},
		"a folder of Pando":    {file("run/pando/self.sock")},
		"through a link":       {link("tmp/out", "../proc"), file("tmp/out/settings")},
		"onto a link":          {link("tmp/on", "../proc/settings"), file("tmp/on")},
		"up":                   {file("tmp/../proc/settings")},
	} {
		if err := unpack(all...); !errors.Is(err, pando.ErrForbidden) && !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
		for _, name := range []string{"proc/settings", "root/authorized_keys", "home/x", "tmp/volume/x",
			"run/pando/self.sock"} {
			if _, err := os.Lstat(filepath.Join(at, name)); err == nil {
				t.Errorf("%s wrote %s", what, name)
			}
		}
	}
}
