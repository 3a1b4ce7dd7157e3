package process

import (
	"bytes"
	"os"
	"pando.run/pando/driver/sandbox/process/volume"
	"path/filepath"
	"slices"
	"testing"
)

// An archive brings the volumes of a service back on another host, with owners, modes and links.
// The next instance finds its files. A volume that is there stays as it is.
func TestVolumesComeBackFromAnArchive(t *testing.T) {
	d, secret := newDriver(t, 0), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hush"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := start(t, d, "web-1", 1, keeps, "cd /var/lib/web && mkdir -m 750 d && echo one > d/own && "+
		"chmod 640 d/own && ln -s "+secret+" link && mkfifo pipe && echo all > /srv/media/x")
	if e := exited(t, a); e.Code != 0 {
		t.Fatal(a.LastLines(5))
	}
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.removals.Wait() // the other driver uses the same number, and so the same cgroup
	var file bytes.Buffer
	if err := volume.Archive(t.Context(), d.Volumes, &file); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(file.Bytes(), []byte("hush")) {
		t.Error("the archive has a file outside the volumes")
	}
	other := newDriver(t, 0)
	want := []string{"default/web/data/1", "default/web/media/shared"}
	back, err := volume.Restore(other.Volumes, bytes.NewReader(file.Bytes()))
	if err != nil || !slices.Equal(back, want) {
		t.Fatalf("back: %v, %v", back, err)
	}
	const read = "cd /var/lib/web; cat d/own /srv/media/x; stat -c %a d d/own; readlink link; " +
		"test -e pipe || echo none; echo two > d/own"
	wantOutput(t, start(t, other, "web-2", 1, keeps, read), "one all 750 640 "+secret+" none")
	if back, err = volume.Restore(other.Volumes, &file); err != nil || len(back) > 0 {
		t.Errorf("a second time: %v, %v", back, err)
	}
	got, err := os.ReadFile(filepath.Join(other.Volumes, want[0], "d", "own"))
	if err != nil || string(got) != "two\n" {
		t.Errorf("its file is %q, %v", got, err)
	}
}
