package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// limitsRole makes the test binary print its limits, and what it sees, once it is confined.
const limitsRole = UnpackRole + "-limits"

func printLimits() int {
	if err := confine(task{Bytes: 1000}); err != nil {
		fmt.Println(err)
		return 1
	}
	for _, what := range []int{unix.RLIMIT_AS, unix.RLIMIT_CPU, unix.RLIMIT_FSIZE, unix.RLIMIT_CORE} {
		var r unix.Rlimit
		if err := unix.Getrlimit(what, &r); err != nil || r.Cur != r.Max {
			return 1
		}
		fmt.Print(r.Max, " ")
	}
	files, _ := os.ReadDir("/")
	fmt.Println(len(files))
	return 0
}

// apart returns a store that unpacks by processes of their own.
func apart(t *testing.T) *Store {
	t.Helper()
	s := open(t)
	s.Unpack = []string{"/proc/self/exe", UnpackRole}
	return s
}

func TestAProcessOfItsOwnUnpacksALayer(t *testing.T) {
	s := apart(t)
	plain := archive(t, file{name: "a/b", body: "hello", uid: 7}, file{name: "a/.wh.c"},
		file{name: "l", kind: tar.TypeSymlink, link: "/etc"})
	dir, err := unpackOne(t, s, gzipped(t, plain), plain)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "a/b"))
	if n := s.unpackedBytes(hash(plain)); err != nil || string(b) != "hello" || n != 5 {
		t.Errorf("%q, %d bytes (%v)", b, n, err)
	}
	if st, err := os.Lstat(filepath.Join(dir, "a/c")); err != nil || !isWhiteout(st) {
		t.Errorf("the whiteout: %v %v", st, err)
	}
}

func TestALayerThatIsRefusedIsNotReadAgain(t *testing.T) {
	s := apart(t)
	plain := archive(t, file{name: "a", kind: tar.TypeSymlink, link: "../.."}, file{name: "a/x"})
	_, err := unpackOne(t, s, plain, plain)
	if !errors.As(err, new(layerError)) {
		t.Fatalf("a way out of the layer: %v", err)
	}
	s.Unpack = []string{"/nowhere"}
	if _, again := unpackOne(t, s, plain, plain); !errors.Is(again, pando.ErrInvalid) {
		t.Errorf("the second time: %v", again)
	}
	// An image that claims the files of another layer harms that layer not.
	good := archive(t, file{name: "good"})
	if _, err := unpackOne(t, apart(t), plain, good); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("wrong files: %v", err)
	}
	s.Unpack = nil
	if _, err := unpackOne(t, s, good, good); err != nil {
		t.Error(err)
	}
}

func TestTheProcessThatUnpacksHasLimits(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the process changes its root")
	}
	c := exec.Command("/proc/self/exe", limitsRole)
	folder, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	c.ExtraFiles = []*os.File{folder, folder}
	out, err := c.Output()
	var as, cpu, size, core, seen int64
	if n, _ := fmt.Sscan(string(out), &as, &cpu, &size, &core, &seen); err != nil || n != 5 {
		t.Fatalf("%s (%v)", out, err)
	}
	if as <= unpackMemMax || as > 8<<30 || cpu != unpackCPUMax || size != 1000 || core != 0 || seen != 0 {
		t.Errorf("limits %d %d %d %d, and it sees %d files", as, cpu, size, core, seen)
	}
}

// A process that hangs ends with the pull that wants it, or by its limit.
func TestAnUnpackingThatHangsIsEnded(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	blob, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	hangs := func(s *Store, ctx context.Context) error {
		s.Unpack = []string{"sh", "-c", "exec " + sleep + " 600"}
		_, err := s.unpackApart(ctx, t.TempDir(), blob, task{})
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := hangs(open(t), ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a pull that ends: %v", err)
	}
	s := open(t)
	s.Clock = &impatient{}
	if err := hangs(s, t.Context()); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("beyond its time: %v", err)
	}
}

func TestADeepPathIsRefused(t *testing.T) {
	for parts, want := range map[int]error{partsMax: nil, partsMax + 1: pando.ErrTooLarge} {
		s := open(t)
		plain := archive(t, file{name: strings.Repeat("d/", parts-1) + "f"})
		if _, err := unpackOne(t, s, plain, plain); !errors.Is(err, want) {
			t.Errorf("%d parts: %v", parts, err)
		}
	}
}

// An entry that takes the place of an open folder, or of a link to one, is where later entries go.
func TestAReplacedFolderIsNotWrittenTo(t *testing.T) {
	s := open(t)
	plain := archive(t,
		file{name: "real/one"}, file{name: "l", kind: tar.TypeSymlink, link: "real"}, file{name: "l/two"},
		file{name: "l"}, file{name: "l", kind: tar.TypeSymlink, link: "other"},
		file{name: "other/", kind: tar.TypeDir}, file{name: "l/three"},
		file{name: "gone/x"}, file{name: "gone"}, file{name: "gone/", kind: tar.TypeDir}, file{name: "gone/y"})
	dir, err := unpackOne(t, s, plain, plain)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"real/one": true, "real/two": true, "real/three": false,
		"other/three": true, "gone/x": false, "gone/y": true} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v, want there: %v", name, err, want)
		}
	}
}

// zeros is an archive with one large file.
func zeros(t *testing.T, size int64) io.Reader {
	t.Helper()
	var head bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "z", Typeflag: tar.TypeReg, Mode: 0o644,
		Size: size}); err != nil {
		t.Fatal(err)
	}
	return io.MultiReader(&head, io.LimitReader(zero{}, size+1024))
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestUnpackingLooksAtTheFreeSpace(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	looked := 0
	u := &unpacker{root: root, left: 1 << 40, times: map[string]time.Time{}, disk: &looks{room: func() error {
		if looked++; looked > 2 {
			return pando.ErrStoreFull
		}
		return nil
	}}}
	if err := u.all(tar.NewReader(zeros(t, 1<<40))); !errors.Is(err, pando.ErrStoreFull) {
		t.Fatal(err)
	}
	if st, err := root.Stat("z"); err != nil || st.Size() > 2*lookBytes {
		t.Errorf("%v bytes were written after the disk was full (%v)", st.Size(), err)
	}
	full := open(t)
	full.FreeMin = 1 << 60
	plain := archive(t, file{name: "a"})
	if _, err := unpackOne(t, full, plain, plain); !errors.Is(err, pando.ErrStoreFull) {
		t.Errorf("on a full disk: %v", err)
	}
}

// An image has a bound for all its layers, and one that is refused leaves the list.
func TestARefusedImageIsNotListed(t *testing.T) {
	clean(t)
	large := func(name string) []byte {
		return archive(t, file{name: name, body: strings.Repeat(name, 6000)})
	}
	random := func() []byte {
		b := make([]byte, 6000)
		_, _ = rand.Read(b)
		return archive(t, file{name: "r", body: string(b)})
	}
	for want, layers := range map[string][][]byte{
		"its layers have more":  {random(), random()},
		"together are larger":   {large("a"), large("b")},
		"would leave the layer": {archive(t, file{name: "../x"})},
	} {
		name := want
		s, l := open(t), newLayout(t)
		s.UnpackedMax = 10_000
		l.add(t, "v1", "amd64", v1.Config{}, layers...)
		i, _, err := s.Resolve(t.Context(), "", pando.Image{Reference: "oci:" + l.dir})
		if err != nil {
			t.Fatal(err)
		}
		if all, err := s.List(); err != nil || len(all) != 1 {
			t.Fatalf("%s: listed %v (%v)", name, all, err)
		}
		if err := s.Pull(t.Context(), i, nil); !ofContent(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		all, err := s.List()
		if err != nil || slices.ContainsFunc(all, func(st pando.ImageStatus) bool { return st.Digest == i.Digest }) {
			t.Errorf("%s: it is listed: %v (%v)", name, all, err)
		}
	}
}

func TestAReportThatIsNoneIsAnError(t *testing.T) {
	s := open(t)
	blob, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	for script, want := range map[string]string{
		"exit 3": "exit status 3", "echo fatal error: out of memory >&2; exit 2": "memory",
		"kill -KILL $$": "processor time", `echo '{"code":"forbidden","error":"no"}'`: "no",
	} {
		s.Unpack = []string{"sh", "-c", script}
		if _, err := s.unpackApart(t.Context(), t.TempDir(), blob, task{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
	}
	if UnpackMain([]string{"x"}) != 2 || json.Valid([]byte("x")) {
		t.Error("a wrong task is accepted")
	}
}
