package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/volume"
)

// A program that nests folders hides no byte of a volume from its host, and keeps nobody from removing
// it. A path to the last folder is longer than the kernel takes.
func TestDeepFoldersOfAVolumeAreMeasuredAndRemoved(t *testing.T) {
	d := newDriver(t, 2)
	const write = "cd /var/lib/web; n=0; while [ $n -lt 300 ]; do " +
		"mkdir dddddddddddddddddddddddddddddd; cd -P dddddddddddddddddddddddddddddd; n=$((n+1)); done; " +
		"echo made; head -c 100000 /dev/zero >/var/lib/web/zero"
	a := start(t, d, "web-1", 1, keeps, write)
	if e := exited(t, a); e.Code != 0 {
		t.Fatal(a.LastLines(5))
	}
	web := pando.DefaultService("web")
	use, err := d.VolumeStore().MeasureVolume(t.Context(), pando.VolumePart{Service: web, Name: "data", Part: "1"})
	if err != nil || !use.Deep || !use.Partial || use.Bytes < 100_000 {
		t.Errorf("it measures %+v, %v", use, err)
	}
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.VolumeStore().RemoveVolume(t.Context(), web, "data"); err != nil {
		t.Fatal(err)
	}
}

// volumesOf lists the volumes that a query chooses.
func volumesOf(t *testing.T, d *Driver, q pando.VolumeQuery) (text string, all []pando.KeptVolume) {
	t.Helper()
	all, err := d.VolumeStore().KeptVolumes(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		text += fmt.Sprintf("%s/%s/%s ", v.Service, v.Name, v.Part)
	}
	return strings.TrimSpace(text), all
}

// The volumes of a service are listed with their sizes, also after its last instance. A removal
// waits for no instance: it is refused while one has the volume, and then deletes every part.
func TestVolumesAreListedAndRemoved(t *testing.T) {
	d := newDriver(t, 2)
	web, host := pando.DefaultService("web"), d.VolumeStore()
	const write = "head -c 100000 /dev/zero > /var/lib/web/zero; echo ready; exec sleep 60"
	a := start(t, d, "web-1", 1, keeps, write)
	b := start(t, d, "web-2", 2, keeps, "true")
	exited(t, b)
	for deadline := time.Now().Add(time.Minute); len(a.LastLines(1)) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("it never writes")
		}
		inside(t, a, "true")
	}
	unfinished := filepath.Join(d.Volumes, "default/web/data/.new-1")
	if err := os.Mkdir(unfinished, 0o700); err != nil {
		t.Fatal(err)
	}
	const want = "web/data/1 web/data/2 web/media/shared"
	text, all := volumesOf(t, d, pando.VolumeQuery{Service: web, Measure: true})
	if text != want {
		t.Fatalf("the volumes are %s, want %s", text, want)
	}
	if v := all[0]; v.Bytes < 100_000 || v.Files != 2 || v.UID < volume.UidVolumes || v.Partial {
		t.Errorf("the first is %+v", v) // zero and the folder cache
	}
	if text, _ := volumesOf(t, d, pando.VolumeQuery{Service: web, Name: "media"}); text !=
		"web/media/shared" {
		t.Errorf("those named media are %s", text)
	}
	if err := host.RemoveVolume(t.Context(), web, "data"); !errors.Is(err, pando.ErrConflict) {
		t.Errorf("beside an instance: %v", err)
	}
	if text, _ := volumesOf(t, d, pando.VolumeQuery{}); text != want {
		t.Errorf("after a refusal the volumes are %s", text)
	}
	for _, name := range []string{"none", "..", "../web/data", ".new-1", ""} {
		if err := host.RemoveVolume(t.Context(), web, name); !errors.Is(err, pando.ErrNotFound) {
			t.Errorf("volume %q: %v", name, err)
		}
	}
	for _, one := range []pando.Sandbox{a, b} {
		if err := one.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := host.RemoveVolume(t.Context(), web, "data"); err != nil {
		t.Fatal(err)
	}
	if text, _ := volumesOf(t, d, pando.VolumeQuery{}); text != "web/media/shared" {
		t.Errorf("without data the volumes are %s", text)
	}
	if err := host.RemoveVolume(t.Context(), web, "media"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(d.Volumes); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
