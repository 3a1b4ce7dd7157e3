package image

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// hurried is a clock whose waits are short, and that a test may move.
type hurried struct {
	clock.Clock
	ahead atomic.Int64 // nanoseconds; the watch of an ended pull may still read it
}

func (h *hurried) Now() time.Time { return h.Clock.Now().Add(time.Duration(h.ahead.Load())) }

func (h *hurried) After(d time.Duration) (<-chan time.Time, func()) {
	if d < stallsMax {
		d /= 50
	}
	return h.Clock.After(d)
}

// names lists a folder.
func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestTheSweepKeepsWhatIsUsed(t *testing.T) {
	s, l := open(t), newLayout(t)
	shared := archive(t, file{name: "shared", body: "x"})
	images := map[string]pando.Image{}
	for _, name := range []string{"old", "used", "new"} {
		l.add(t, name, "amd64", v1.Config{}, shared, archive(t, file{name: name, body: name}))
		images[name], _ = pulled(t, s, "oci:"+l.dir+":"+name)
	}
	s.Clock.(*hurried).ahead.Store(int64(100 * time.Hour))
	if err := s.Touch(images["new"].Digest); err != nil {
		t.Fatal(err)
	}
	keep := map[string]bool{images["used"].Digest: true}
	removed, err := s.Sweep(t.Context(), keep, Bounds{Age: 50 * time.Hour, Bytes: 1 << 40})
	if err != nil || !slices.Equal(removed, []string{images["old"].Digest}) {
		t.Errorf("removed %v (%v), want only the old one", removed, err)
	}
	for name, want := range map[string]bool{"old": false, "used": true, "new": true} {
		if _, err := s.Root(images[name].Digest, ""); (err == nil) != want {
			t.Errorf("%s: %v, want it here: %v", name, err, want)
		}
	}
	if n := len(names(t, s.LayersDir())); n != 6 { // three layers, each with its size
		t.Errorf("%d layers are left: %v", n, names(t, s.LayersDir()))
	}
	// Over its bytes, an unused image goes before its age, but not lately used ones.
	removed, err = s.Sweep(t.Context(), keep, Bounds{Age: 50 * time.Hour, Bytes: 1})
	if err != nil || len(removed) != 0 {
		t.Errorf("removed %v (%v) although it was just used", removed, err)
	}
	s.Clock.(*hurried).ahead.Add(int64(2 * time.Hour))
	removed, err = s.Sweep(t.Context(), keep, Bounds{Age: 50 * time.Hour, Bytes: 1})
	if err != nil || !slices.Equal(removed, []string{images["new"].Digest}) {
		t.Errorf("removed %v (%v), want the unused one", removed, err)
	}
	if err := s.Remove(t.Context(), images["used"].Digest); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{s.LayersDir(), s.blobs(), s.records()} {
		if left := names(t, dir); len(left) > 0 {
			t.Errorf("%s still has %v", filepath.Base(dir), left)
		}
	}
	if err := s.Remove(t.Context(), images["used"].Digest); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("a second removal: %v", err)
	}
}

func TestTheSweepWaitsForPulls(t *testing.T) {
	s, l := open(t), newLayout(t)
	l.add(t, "v1", "amd64", v1.Config{}, archive(t, file{name: "a"}))
	i, _ := pulled(t, s, "oci:"+l.dir)
	done, err := s.using(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Clock.(*hurried).ahead.Store(int64(1000 * time.Hour))
	removed, err := s.Sweep(t.Context(), nil, Bounds{Age: time.Hour})
	if len(removed) > 0 || err != nil {
		t.Errorf("removed %v (%v) beside a pull", removed, err)
	}
	done()
	removed, err = s.Sweep(t.Context(), nil, Bounds{Age: time.Hour})
	if len(removed) != 1 || err != nil {
		t.Errorf("removed %v (%v), want %s", removed, err, i.Digest)
	}
}

func TestImagesAreListedAndNamed(t *testing.T) {
	s, l := open(t), newLayout(t)
	l.add(t, "v1", "amd64", v1.Config{Cmd: []string{"x"}}, archive(t, file{name: "a"}))
	reference := "oci:" + l.dir + ":v1"
	i, _, err := s.Resolve(t.Context(), "", pando.Image{Reference: reference})
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.List()
	if err != nil || len(all) != 1 || all[0].Unpacked || all[0].Config.Command[0] != "x" ||
		all[0].Bytes() == 0 {
		t.Errorf("before the pull: %+v %v", all, err)
	}
	for word, want := range map[string]int{reference: 1, i.Digest: 1, i.Digest[:15]: 1,
		strings.TrimPrefix(i.Digest, "sha256:")[:8]: 1, "sha256:": 0, "": 0, "other": 0} {
		if got := len(pando.ImagesMatching(all, word)); got != want {
			t.Errorf("%q names %d images, want %d", word, got, want)
		}
	}
}

func TestNoSpaceIsNamed(t *testing.T) {
	s, l := open(t), newLayout(t)
	l.add(t, "v1", "amd64", v1.Config{}, archive(t, file{name: "a"}))
	s.FreeMin = 1 << 60
	_, _, err := s.Resolve(t.Context(), "", pando.Image{Reference: "oci:" + l.dir})
	if !errors.Is(err, pando.ErrStoreFull) || !strings.Contains(err.Error(), "`pando image rm`") {
		t.Errorf("without space: %v", err)
	}
}

// A layer whose record of its size cannot be read has the size of its files. With 0, no share would
// bound it.
func TestALayerWithoutARecordIsCounted(t *testing.T) {
	layer := filepath.Join(t.TempDir(), "layer")
	if err := os.MkdirAll(filepath.Join(layer, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(layer, "etc", "passwd"), make([]byte, 3000), 0o600); err != nil {
		t.Fatal(err)
	}
	for record, want := range map[string]int64{"77": 77, "": 3000, "7x": 3000} {
		if err := os.WriteFile(layer+sizeSuffix, []byte(record), 0o600); err != nil {
			t.Fatal(err)
		}
		if n := layerBytes(layer); n != want {
			t.Errorf("with the record %q it has %d bytes, want %d", record, n, want)
		}
	}
}
