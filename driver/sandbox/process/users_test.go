package process

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/volume"
	"pando.run/pando/driver/sandbox/process/wire"
)

// ids prints the users of a program as the host sees them, from its own /proc.
const ids = "id -u; id -g; grep -m 1 . /proc/self/uid_map; grep -E '^(CapEff|CapBnd|NoNewPrivs)' " +
	"/proc/self/status"

// uidOnHost returns the uid of the program of a sandbox, in the words of the host.
func uidOnHost(t *testing.T, b pando.Sandbox) uint32 {
	t.Helper()
	slot := b.(*sandbox).slot
	pids, err := slot.cgroup.Processes()
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == slot.PID }) // a thread of it
	if err != nil || len(pids) == 0 {
		t.Fatalf("its processes: %v, %v", pids, err)
	}
	st, err := os.Stat(fmt.Sprintf("/proc/%d", pids[0]))
	if err != nil {
		t.Fatal(err)
	}
	return volume.OwnerOf(st)
}

// Root of a spec or of an image is root of its own users alone. Of an image it has the capabilities
// that changing the user takes, and otherwise none.
func TestRootIsNotTheRootOfTheHost(t *testing.T) {
	kept := filepath.Join(folder(t, "/srv"), "kept")
	if err := os.WriteFile(kept, []byte("of root"), 0o600); err != nil {
		t.Fatal(err)
	}
	asRoot := func(s *pando.Spec) { s.User, s.Folders = "root", []pando.Folder{{Path: kept}} }
	onHost := func(s *pando.Spec) { s.UsernsMode = pando.UsernsHost }
	for name, c := range map[string]struct {
		driver func(*testing.T, int) *Driver
		change func(*pando.Spec)
		host   bool // its root is the host's
	}{
		"user root":      {newDriver, asRoot, false},
		"image":          {newImageDriver, withImage, false},
		"userns_mode":    {newDriver, func(s *pando.Spec) { asRoot(s); onHost(s) }, true},
		"image and host": {newImageDriver, func(s *pando.Spec) { withImage(s); onHost(s) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := run(t, c.driver(t, 1), c.change, "/bin/sleep", "60")
			on := uidOnHost(t, b)
			if (on == 0) != c.host || !c.host && (on < wire.UsersFirst || (on-wire.UsersFirst)%wire.UsersEach != 0) {
				t.Errorf("on the host it runs as uid %d", on)
			}
			// Twice: a command beside the program enters the same users.
			for range 2 {
				got := strings.Fields(inside(t, b, ids))
				want := fmt.Sprintf("0 0 0 %d %d", on, wire.UsersEach)
				if c.host {
					want = "0 0 0 0 4294967295"
				}
				capabilities := "0000000000000000"
				if name == "image" {
					capabilities = "00000000000001fb"
				}
				want += " CapBnd: " + capabilities
				bound := strings.Join(append(got[:5:5], got[7:9]...), " ")
				if bound != want || got[6] != capabilities || got[10] != "1" {
					t.Errorf("inside: %v, want %s", got, want)
				}
			}
			read := inside(t, b, "cat "+kept+" 2>/dev/null || echo refused")
			if strings.HasPrefix(name, "image") {
				return
			}
			if want := map[bool]string{true: "of root", false: "refused"}[c.host]; read != want {
				t.Errorf("a file of the host's root: %q, want %q", read, want)
			}
		})
	}
}

// Official images start as root, give folders to the user of their service and change to it.
func TestRootOfAnImageChangesItsUser(t *testing.T) {
	d := newImageDriver(t, 1)
	copyProgram(t, filepath.Join(d.Layers, "low"), "/bin/chown", "/usr/bin/setpriv", "/usr/bin/stat",
		"/bin/mkdir")
	b := run(t, d, withImage, "/bin/sh", "-c", `mkdir /data/own && chown 33:33 /data/own &&
		stat -c "owner %u:%g" /data/own
		setpriv --reuid 33 --regid 33 --clear-groups sh -c "id -u; touch /data/own/x && echo wrote
			touch /data/other 2>/dev/null || echo refused
			grep CapEff /proc/self/status"`)
	exited(t, b)
	got := strings.Join(b.LastLines(9), "\n")
	if want := "owner 33:33\n33\nwrote\nrefused\nCapEff:\t0000000000000000"; got != want {
		t.Errorf("the output is\n%s\nwant\n%s", got, want)
	}
}

// Services have ranges of their own, and keep them.
func TestServicesShareNoUsers(t *testing.T) {
	d := newDriver(t, 0)
	of := map[string]uint32{}
	for range 2 {
		for _, name := range []string{"one", "two"} {
			first, err := d.ranges.of(pando.DefaultService(pando.ServiceName(name)))
			if err != nil || of[name] != 0 && of[name] != first {
				t.Fatalf("%s: %d after %d, %v", name, first, of[name], err)
			}
			of[name] = first
		}
	}
	if of["one"] == of["two"] {
		t.Errorf("both have %d", of["one"])
	}
}

// When all ranges are given, the one that rested longest is given again, and none that is in use.
func TestRangesOfUsersAreBounded(t *testing.T) {
	d := newDriver(t, 0)
	run(t, d, func(s *pando.Spec) { s.User = "root" }, "sleep", "60") // service web
	for n, name := range []string{"newer", "older"} {
		if _, err := d.ranges.of(pando.DefaultService(pando.ServiceName(name))); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(n+1) * -time.Hour)
		if err := os.Chtimes(filepath.Join(d.Users, "default", name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Unix(0, 0)
	if err := os.Chtimes(filepath.Join(d.Users, "default", "web"), long, long); err != nil {
		t.Fatal(err)
	}
	older, err := os.Stat(filepath.Join(d.Users, "default", "older"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.ranges.free(3); err != nil || got != volume.OwnerOf(older) {
		t.Errorf("it gave %d, %v, want that of the older, %d", got, err, volume.OwnerOf(older))
	}
	if got, err := d.ranges.free(2); err != nil || got == uint32(wire.UsersFirst) {
		t.Errorf("it gave %d, %v, want that of the newer", got, err)
	}
	if got, err := d.ranges.free(1); err == nil {
		t.Errorf("it gave %d, which is in use", got)
	}
}

// A tenant whose services come and go takes no range of another tenant, which rested longer.
func TestRangesOfUsersHaveAShareForEachTenant(t *testing.T) {
	d := newDriver(t, 0)
	for n, s := range []pando.ServiceKey{{Tenant: "bank", Name: "db"}, {Tenant: "acme", Name: "a"},
		{Tenant: "acme", Name: "b"}} {
		if _, err := d.ranges.of(s); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(n-9) * time.Hour)
		if err := os.Chtimes(filepath.Join(d.Users, string(s.Tenant), string(s.Name)), at, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.ranges.free(3); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(d.Users, "*", "*"))
	want := []string{filepath.Join(d.Users, "acme", "b"), filepath.Join(d.Users, "bank", "db")}
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("left are %q (%v), want %q", left, err, want)
	}
}

// A service has large ids as well: all up to some 1 million, and each that its image or user names.
func TestLargeIDsAreOfTheService(t *testing.T) {
	d := newImageDriver(t, 1)
	copyProgram(t, filepath.Join(d.Layers, "low"), "/usr/bin/stat", "/bin/chown")
	for name, id := range map[string]int{"project": 1_000_620_000, "directory": 70_000, "other": 2_000_000_000} {
		file := filepath.Join(d.Layers, "low", name)
		if err := errors.Join(os.WriteFile(file, []byte(name), 0o640), os.Chown(file, id, id)); err != nil {
			t.Fatal(err)
		}
	}
	images := d.Images.(oneImage)
	images.root.Owners = []uint32{1_000_620_000}
	images.root.GID, images.root.Groups = 3_000_000_000, []uint32{80_000}
	d.Images = images
	b := run(t, d, withImage, "/bin/sh", "-c", `stat -c %u:%g /project /directory /other; cat /project
		echo; id -g; id -G; cd /data; echo x >new; chown 900000:1000620000 new && stat -c %u:%g new`)
	exited(t, b)
	want := "1000620000:1000620000\n70000:70000\n65534:65534\nproject\n3000000000\n" +
		"3000000000 80000\n900000:1000620000"
	if got := strings.Join(b.LastLines(9), "\n"); got != want {
		t.Errorf("the output is\n%s\nwant\n%s", got, want)
	}
}

// The ids of two services never meet, and an id goes out and in again.
func TestLargeIDsOfServicesAreApart(t *testing.T) {
	const last = wire.UsersFirst + (usersRanges-1)*wire.UsersEach
	seen := map[uint32]string{}
	for _, first := range []uint32{wire.UsersFirst, wire.UsersFirst + wire.UsersEach, last} {
		u := wire.Users{First: first, Large: []uint32{wire.LargeEach, 1_000_620_000, 4_294_967_294}}
		for _, id := range append([]uint32{0, wire.UsersEach - 1, wire.UsersEach, wire.LargeEach - 1}, u.Large...) {
			on := u.Outside(id)
			if u.Inside(on) != id || seen[on] != "" || on < wire.UsersFirst {
				t.Errorf("%d of %d is %d outside, %d inside, and has %q", id, first, on, u.Inside(on), seen[on])
			}
			seen[on] = fmt.Sprint(first, id)
		}
		if on := u.Outside(wire.LargeEach + 1); on != wire.Nobody || u.Inside(0) != wire.Nobody {
			t.Errorf("an id that it does not have is %d", on)
		}
		if n := len(u.Maps()); n > 4095 {
			t.Errorf("the kernel takes no map of %d bytes", n)
		}
	}
}

// Files of root in a volume stay root's on the disk, and the next instance finds them as its own.
func TestFilesOfAVolumeKeepTheirUsers(t *testing.T) {
	d := newImageDriver(t, 0)
	change := func(s *pando.Spec) { withImage(s); keeps(s) }
	a := start(t, d, "web-1", 1, change, "echo one > /var/lib/web/own && echo wrote")
	wantOutput(t, a, "wrote")
	file := filepath.Join(d.Volumes, "default/web/data/1/own")
	st, err := os.Stat(file)
	if err != nil || volume.OwnerOf(st) != 0 {
		t.Fatalf("on the disk: %v, %v", st, err)
	}
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := start(t, d, "web-2", 1, change,
		"ls -n /var/lib/web/own | grep -c '1 0 0'; cat /var/lib/web/own; echo two > /var/lib/web/own")
	wantOutput(t, b, "1 one")
}

// A program of root opens its own output again, and the bound of its open files is the usual one.
// Signal 32 is the C library's own. Go leaves it to its children as its parent had it.
func TestAProgramWithItsOwnUsersHasTheUsualFiles(t *testing.T) {
	d := newDriver(t, 0)
	const say = "ulimit -Sn; echo again > /dev/stdout; " +
		"grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status"
	plain := run(t, d, nil, "sh", "-c", say)
	own := run(t, d, func(s *pando.Spec) { s.User, s.Name = "root", "web2" }, "sh", "-c", say)
	exited(t, plain)
	exited(t, own)
	output := func(b pando.Sandbox) string {
		said := strings.Join(b.LastLines(9), "\n")
		return strings.ReplaceAll(said, "\t0000000080000000", "\t0000000000000000")
	}
	want, got := output(plain), output(own)
	if got != want || !strings.Contains(got, "again") {
		t.Errorf("with users of its own:\n%s\nwithout:\n%s", got, want)
	}
}

// A program that inherits an ignored SIGHUP never learns of a renewed secret.
func TestAProgramBeginsWithTheDefaultSignals(t *testing.T) {
	signal.Ignore(unix.SIGHUP) // as nohup does
	t.Cleanup(func() { signal.Reset(unix.SIGHUP) })
	b := run(t, newDriver(t, 0), nil, "grep", "SigIgn", "/proc/self/status")
	exited(t, b)
	const hup = 1 << (unix.SIGHUP - 1)
	said := strings.Join(b.LastLines(1), "")
	_, text, _ := strings.Cut(said, "\t")
	if ignored, err := strconv.ParseUint(text, 16, 64); err != nil || ignored&hup != 0 {
		t.Errorf("the program ignores SIGHUP: %s, %v", said, err)
	}
}
