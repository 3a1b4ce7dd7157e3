package process

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// withFolder puts the folder /srv/app of user 1000 into the image of a driver.
func withFolder(t *testing.T, d *Driver) {
	t.Helper()
	at := filepath.Join(d.Layers, "low/srv/app")
	err := errors.Join(os.MkdirAll(filepath.Join(at, "sub"), 0o755),
		os.WriteFile(filepath.Join(at, "sub/seed"), []byte("seed\n"), 0o640),
		os.Symlink("sub/seed", filepath.Join(at, "link")), unix.Mkfifo(filepath.Join(at, "pipe"), 0o600),
		os.Lchown(filepath.Join(at, "sub/seed"), 1000, 7), os.Chown(at, 1000, 1000),
		unix.Chmod(at, 0o2775), unix.Chmod(filepath.Join(at, "sub"), 0o500))
	if err != nil {
		t.Fatal(err)
	}
}

// A new volume has the owner, the mode and the files of the image's folder, and keeps what was
// written. Users of the image are those of the volume.
func TestANewVolumeBeginsAsTheFolderOfItsImage(t *testing.T) {
	for name, shared := range map[string]bool{"own": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			d := newImageDriver(t, 1)
			withFolder(t, d)
			change := func(s *pando.Spec) {
				withImage(s)
				s.Volumes = []pando.Volume{{Name: "app", Path: "/srv/app", Shared: shared}}
			}
			const look = "cd /srv/app; stat -c '%a %u:%g' . sub sub/seed; stat -c %N link; ls; cat link; " +
				"echo two >sub/seed; touch new"
			a := start(t, d, "web-1", 1, change, look)
			wantOutput(t, a, "2775 1000:1000 500 0:0 640 1000:7 'link' -> 'sub/seed' link sub seed")
			if err := a.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantOutput(t, start(t, d, "web-2", 1, change, look),
				"2775 1000:1000 500 0:0 640 1000:7 'link' -> 'sub/seed' link new sub two")
		})
	}
}

// A volume that the user of the program could not write belongs to that user.
func TestANewVolumeBelongsToAProgramThatCouldNotWriteIt(t *testing.T) {
	d := newImageDriver(t, 1)
	withFolder(t, d)
	for _, c := range []struct{ path, user, mode, want string }{
		{"/srv/app", "web", "", "2775 101:102 wrote"}, {"/srv/none", "web", "", "755 101:102 wrote"},
		{"/data", "web", "", "755 101:102 wrote"},
		{"/srv/app", "", pando.UsernsHost, "2775 0:0 wrote"}, // without capabilities
	} {
		b := start(t, d, "web-1", 1, func(s *pando.Spec) {
			withImage(s)
			s.Name = pando.ServiceName("of" + filepath.Base(c.path) + c.mode)
			s.User, s.UsernsMode = c.user, c.mode
			s.Volumes = []pando.Volume{{Name: "app", Path: c.path}}
		}, "cd "+c.path+"; stat -c '%a %u:%g' .; touch x && echo wrote")
		wantOutput(t, b, c.want)
	}
}

// What the user of such a folder has in it belongs to the program as well: a database finds its
// subfolders writable. Files of other users stay theirs.
func TestTheFilesOfSuchAVolumeBelongToTheProgram(t *testing.T) {
	d := newImageDriver(t, 1)
	withFolder(t, d)
	own := filepath.Join(d.Layers, "low/srv/app/own")
	if err := errors.Join(os.Mkdir(own, 0o750), os.Chown(own, 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	b := start(t, d, "web-1", 1, func(s *pando.Spec) {
		withImage(s)
		s.User = "web"
		s.Volumes = []pando.Volume{{Name: "app", Path: "/srv/app"}}
	}, "cd /srv/app; stat -c '%a %u:%g' own sub; touch own/x && echo wrote")
	wantOutput(t, b, "2750 101:102 500 0:0 wrote")
}

// A volume that was filled in part is filled again: the mark goes last.
func TestAVolumeThatWasFilledInPartIsFilledAgain(t *testing.T) {
	d := newImageDriver(t, 1)
	withFolder(t, d)
	at := filepath.Join(d.Volumes, "default/web/app/1")
	err := os.MkdirAll(filepath.Join(at, "sub/deep"), 0o700)
	if err == nil {
		err = unix.Setxattr(at, wire.FreshMark, []byte("1"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, d, "web-1", 1, func(s *pando.Spec) {
		withImage(s)
		s.Volumes = []pando.Volume{{Name: "app", Path: "/srv/app"}}
	}, "ls /srv/app /srv/app/sub")
	wantOutput(t, b, "/srv/app: link sub  /srv/app/sub: seed")
	if _, err := unix.Getxattr(at, wire.FreshMark, nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the mark is left: %v", err)
	}
}

// The users of an image are those of a folder of the host that the spec lets them write, and own
// nothing in one that they may only read.
func TestAFolderOfTheHostIsWrittenByTheUsersOfTheImage(t *testing.T) {
	d := newImageDriver(t, 1)
	dir := t.TempDir()
	for name, uid := range map[string]int{"root": 0, "web": 101} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(at, 0o755), os.Chown(at, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	for n, c := range []struct {
		user, folder string
		write        bool
		want         string
	}{
		{"", "root", true, "755 0:0 wrote"}, {"", "web", true, "755 101:101 wrote"},
		{"web", "web", true, "755 101:101 wrote"}, {"web", "root", true, "755 0:0 refused"},
		{"", "root", false, "755 65534:65534 refused"},
	} {
		b := start(t, d, "web-"+strconv.Itoa(n), 1, func(s *pando.Spec) {
			withImage(s)
			s.User = c.user
			s.Folders = []pando.Folder{{Path: filepath.Join(dir, c.folder), At: "/srv/x", Write: c.write}}
		}, "cd /srv/x; stat -c '%a %u:%g' .; (touch made) 2>/dev/null && echo wrote || echo refused")
		exited(t, b)
		if got := strings.Join(b.LastLines(5), " "); got != c.want {
			t.Errorf("user %q in the folder of %s: %q, want %q", c.user, c.folder, got, c.want)
		}
		st, err := os.Stat(filepath.Join(dir, c.folder, "made"))
		if c.write && c.want[len(c.want)-5:] == "wrote" {
			uid := map[string]uint32{"": 0, "web": 101}[c.user]
			if err != nil || st.Sys().(*syscall.Stat_t).Uid != uid {
				t.Errorf("the host has %v (%v), want a file of %d", st, err, uid)
			}
		}
		_ = os.Remove(filepath.Join(dir, c.folder, "made"))
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
