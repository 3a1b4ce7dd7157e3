package recipe

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// write writes a recipe beside its files and returns its path.
func write(t *testing.T, text string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755),
			os.WriteFile(at, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	at := filepath.Join(dir, "image.yaml")
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return at
}

func build(t *testing.T, recipe string) Built {
	t.Helper()
	r, err := Read(recipe)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Build(t.Context(), r, recipe+".tar", "example/test:latest")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unpack writes the files of an image to a folder.
func unpack(t *testing.T, b Built) string {
	t.Helper()
	img, err := tarball.ImageFromPath(b.File, nil)
	if err != nil {
		t.Fatal(err)
	}
	files := mutate.Extract(img)
	defer files.Close()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	all := tar.NewReader(files)
	for {
		h, err := all.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(h.Name, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, h.Name)
		default:
			var f *os.File
			if f, err = root.OpenFile(h.Name, os.O_CREATE|os.O_WRONLY, h.FileInfo().Mode()); err == nil {
				_, err = io.Copy(f, all)
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runIn runs a program with an image as its root, and returns its output.
func runIn(t *testing.T, root string, argv ...string) string {
	t.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	c.Path, c.Err = argv[0], nil
	c.Dir, c.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
	return string(out)
}

// Programs run in their image: it has their libraries, their interpreters and their links.
func TestProgramsRunInTheirImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	recipe := write(t, `
programs: [/usr/sbin/nginx, /usr/bin/ldd, /usr/bin/cat]
files: {nginx.conf: /etc/nginx.conf, site: /srv/www}
users: {www: 99}
user: www
command: [/usr/sbin/nginx, -c, /etc/nginx.conf]
environment: {A: b}
ports: [8080, 53/udp]
stop_signal: SIGQUIT
`, map[string]string{"nginx.conf": "events {}\n", "site/deep/index.html": "hello"})
	b := build(t, recipe)
	root := unpack(t, b)
	if out := runIn(t, root, "/usr/sbin/nginx", "-v"); !strings.Contains(out, "nginx/") {
		t.Errorf("nginx prints %q", out)
	}
	if out := runIn(t, root, "/usr/bin/ldd", "--version"); !strings.Contains(out, "ldd") {
		t.Errorf("a script prints %q", out)
	}
	out := runIn(t, root, "/usr/bin/cat", "/srv/www/deep/index.html", "/etc/passwd")
	if !strings.HasPrefix(out, "hello") || !strings.Contains(out, "www:x:99:99:") {
		t.Errorf("the files are %q", out)
	}
	img, err := tarball.ImageFromPath(b.File, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	_, tcp := c.Config.ExposedPorts["8080/tcp"]
	_, udp := c.Config.ExposedPorts["53/udp"]
	if !tcp || !udp || c.Config.User != "www" || c.Config.StopSignal != "SIGQUIT" ||
		!slices.Equal(c.Config.Env, []string{"A=b"}) || len(c.Config.Cmd) != 3 {
		t.Errorf("the configuration is %+v", c.Config)
	}
}

func TestAPackageRunsInItsImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	b := build(t, write(t, "packages: [redis-server]\ncommand: [redis-server]\n", nil))
	root := unpack(t, b)
	if out := runIn(t, root, "/usr/bin/redis-server", "--version"); !strings.Contains(out, "v=") {
		t.Errorf("it prints %q", out)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/share/doc")); !os.IsNotExist(err) {
		t.Errorf("the image has documentation: %v", err)
	}
	if b.Bytes > 200<<20 {
		t.Errorf("the image has %d bytes", b.Bytes)
	}
}

// The same files give the same image, also with other times, and another file another one.
func TestAnImageIsReproducible(t *testing.T) {
	text := "programs: [/usr/bin/cat]\nfiles: {a: /a, b: /b}\ncommand: [cat, /a]\n"
	first := build(t, write(t, text, map[string]string{"a": "1", "b": "2"}))
	second := build(t, write(t, text, map[string]string{"a": "1", "b": "2"}))
	other := build(t, write(t, text, map[string]string{"a": "1", "b": "3"}))
	if first.Digest != second.Digest || first.Digest == other.Digest {
		t.Errorf("the digests are %s, %s and, with another file, %s", first.Digest, second.Digest,
			other.Digest)
	}
	one, err := os.ReadFile(first.File)
	if err != nil {
		t.Fatal(err)
	}
	if two, err := os.ReadFile(second.File); err != nil || string(one) != string(two) {
		t.Errorf("the files differ: %d and %d bytes, %v", len(one), len(two), err)
	}
	if !Wrote(first.File) {
		t.Error("Build does not know its own file")
	}
}

// An archive of another tool is no file of Build, and a file beside the new one stays.
func TestFilesOfOthersAreKnown(t *testing.T) {
	dir := t.TempDir()
	saved, beside := filepath.Join(dir, "saved.tar"), filepath.Join(dir, "saved.tar.part")
	img, err := mutate.CreatedAt(empty.Image, v1.Time{Time: time.Unix(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(saved, name.MustParseReference("a/b:c"), img); err != nil {
		t.Fatal(err)
	}
	if Wrote(saved) || Wrote(dir) || Wrote(beside) {
		t.Error("Build takes the file of another tool for its own")
	}
	if err := os.WriteFile(beside, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	recipe := write(t, "files: {a: /a}\ncommand: [/a]\n", map[string]string{"a": "1"})
	r, err := Read(recipe)
	if err == nil {
		_, err = Build(t.Context(), r, saved, "a/b:c")
	}
	if text, read := os.ReadFile(beside); err != nil || read != nil || string(text) != "mine" {
		t.Errorf("%v; the file beside is %q, %v", err, text, read)
	}
}

// An image over a base has the files of both, and the base's words where the recipe has none.
func TestAnImageOverABase(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	base := build(t, write(t, "programs: [/usr/bin/cat]\nfiles: {lib.txt: /lib/base.txt}\n"+
		"command: [cat, /lib/base.txt]\nworking_dir: /lib\n", map[string]string{"lib.txt": "base"}))
	top := build(t, write(t, "base: docker-archive:"+base.File+"\nprograms: [/usr/bin/head]\n"+
		"files: {a: /a}\nuser: \"7\"\n", map[string]string{"a": "top"}))
	root := unpack(t, top)
	if out := runIn(t, root, "/usr/bin/cat", "/lib/base.txt", "/a"); out != "basetop" {
		t.Errorf("the files are %q", out)
	}
	if out := runIn(t, root, "/usr/bin/head", "-c", "2", "/a"); out != "to" {
		t.Errorf("head prints %q", out)
	}
	img, err := tarball.ImageFromPath(top.File, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.Config.WorkingDir != "/lib" || len(c.Config.Cmd) != 2 || c.Config.User != "7" {
		t.Errorf("the configuration is %+v", c.Config)
	}
}

func TestARecipeThatIsWrongNamesItsCause(t *testing.T) {
	for text, want := range map[string]string{
		"FROM debian:12\nRUN true\n":                     "buildah build",
		"# syntax=x\n\nARG V=1\nFROM debian:$V\n":        "buildah build",
		"\"\"\"A page.\"\"\"\nfrom http import server\n": "image.yaml:",
		"":                                    "no files",
		"programs: [cat]\ncommand: [cat]\n":   "no absolute path",
		"programs: [/usr/bin/cat]\n":          "command is missing",
		"programs: [/gone/x]\ncommand: [x]\n": "/gone",
		"packages: [no-such-package]\ncommand: [x]\n":               "apt-get install no-such-package",
		"files: {a: b}\ncommand: [x]\n":                             "absolute path in the image",
		"files: {gone: /b}\ncommand: [x]\n":                         "gone",
		"files: {image.yaml: /b}\ncommand: [x]\nuser: w\n":          "users: {w: 999}",
		"program: [/usr/bin/cat]\n":                                 "unknown field",
		"users: {Root: 1}\nfiles: {a: /a}\ncommand: [x]\n":          "users: Root",
		"ports: [http]\nfiles: {a: /a}\ncommand: [x]\n":             "ports:",
		"base: debian\n":                                            "want docker-archive:FILE",
		"base: docker-archive:gone.tar\n":                           "gone.tar",
		"files: {image.yaml: /b, /dev/null: /null}\ncommand: [x]\n": "files, folders and links only",
	} {
		recipe := write(t, text, nil)
		r, err := Read(recipe)
		if err == nil {
			_, err = Build(t.Context(), r, recipe+".tar", "x")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if _, err := os.Stat(recipe + ".tar"); !os.IsNotExist(err) {
			t.Errorf("%q leaves a file: %v", text, err)
		}
	}
}

// A program comes with the package that has its interpreter, and with the names that it shares.
func TestAPackageComesWithItsPartsAndItsNames(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	for _, name := range []string{"/usr/bin/perl", "/usr/bin/mawk", "/usr/bin/passwd"} {
		if _, err := os.Stat(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	t.Setenv("LC_ALL", "C")
	b := build(t, write(t, "packages: [perl, mawk, passwd]\nfiles: {x: /x}\ncommand: [perl, /x]\n",
		map[string]string{"x": `use POSIX; print POSIX::floor(7.5), "\n"`}))
	root := unpack(t, b)
	for want, argv := range map[string][]string{
		"7\n": {"/usr/bin/perl", "/x"},
		"5\n": {"/usr/bin/awk", "BEGIN { print 2 + 3 }"},
	} {
		if out := runIn(t, root, argv...); out != want {
			t.Errorf("%v prints %q, want %q", argv, out, want)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "usr/bin/passwd")); err != nil {
		t.Errorf("a package that the recipe names: %v", err)
	}
}

// The names of an alternative belong to the choice of the highest priority that the image has.
func TestAnAlternativeIsReadByItsChoices(t *testing.T) {
	text := "auto\n/usr/bin/awk\nnawk\n/usr/bin/nawk\n\n" +
		"/usr/bin/gawk\n10\n\n/usr/bin/mawk\n5\n/usr/bin/mawk\n/usr/bin/bwk\n1\n\n\n"
	a, ok := readAlternative(text)
	if !ok || !slices.Equal(a.links, []string{"/usr/bin/awk", "/usr/bin/nawk"}) || len(a.choices) != 3 {
		t.Fatalf("%+v, %t", a, ok)
	}
	got := a.best(func(name string) bool { return name != "/usr/bin/gawk" })
	if !slices.Equal(got.targets, []string{"/usr/bin/mawk", "/usr/bin/mawk"}) {
		t.Errorf("the best of those that the image has is %v", got)
	}
	if none := a.best(func(string) bool { return false }); none.targets != nil {
		t.Errorf("an image without the programs has %v", none)
	}
	for _, text := range []string{"", "auto\n/x\n", "auto\n/x\n\n/y\nmany\n\n"} {
		if a, ok := readAlternative(text); ok && len(a.choices) > 0 {
			t.Errorf("%q has the choices %+v", text, a.choices)
		}
	}
}
