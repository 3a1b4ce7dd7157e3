package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/cgroup"
	"pando.run/pando/driver/sandbox/process/volume"
)

// keeps is the change of a spec that gives it a volume of each kind and a folder in memory.
func keeps(s *pando.Spec) {
	s.Volumes = []pando.Volume{{Name: "data", Path: "/var/lib/web"},
		{Name: "media", Path: "/srv/media", Shared: true}}
	s.Tmpfs = []pando.Tmpfs{{Path: "/var/lib/web/cache", Bytes: 1 << 20, Mode: 0o700}}
}

// startAs starts an instance with an ordinal, and returns an error instead of failing the test.
func startAs(
	ctx context.Context, d *Driver, id string, ordinal int, change func(*pando.Spec), script string,
) (pando.Sandbox, error) {
	spec := pando.Spec{Name: "web", Command: []string{"/bin/sh", "-c", script}, WorkingDir: "/",
		StopSeconds: 0.3}
	change(&spec)
	spec = spec.WithDefaults()
	return d.Start(ctx, pando.SandboxSpec{
		Instance: pando.Instance{ID: pando.InstanceID(id), Service: spec.Key(), Ordinal: ordinal},
		Spec:     spec, VIP4: vip,
	})
}

func start(
	t *testing.T, d *Driver, id string, ordinal int, change func(*pando.Spec), script string,
) pando.Sandbox {
	t.Helper()
	b, err := startAs(t.Context(), d, id, ordinal, change, script)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantOutput(t *testing.T, b pando.Sandbox, want string) {
	t.Helper()
	exited(t, b)
	if got := strings.Join(b.LastLines(20), " "); got != want {
		t.Errorf("it prints %q, want %q", got, want)
	}
}

// The next instance with the same ordinal finds the files under another uid of a slot. Another
// ordinal does not, and a shared volume is the same for both.
func TestAVolumeOutlivesItsInstance(t *testing.T) {
	const write = "cd /var/lib/web && echo one > own && echo all > /srv/media/shared && " +
		"touch cache/x && stat -c %a:%s . cache/x"
	const read = "cd /var/lib/web; cat own; cat /srv/media/shared; ls cache; echo two > own"
	for name, c := range map[string]struct {
		driver func(*testing.T, int) *Driver
		image  func(*pando.Spec)
		write  string
	}{
		"of the host": {newDriver, keeps, write},
		"of an image": {newImageDriver, func(s *pando.Spec) { withImage(s); keeps(s) },
			strings.Split(write, " && stat")[0]},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.driver(t, 2)
			a := start(t, d, "web-1", 1, c.image, c.write)
			if e := exited(t, a); e.Code != 0 {
				t.Fatalf("it cannot write: %v", a.LastLines(9))
			}
			if err := a.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantOutput(t, start(t, d, "web-2", 1, c.image, read), "one all")
			other := start(t, d, "web-3", 2, c.image, "ls /var/lib/web; cat /srv/media/shared")
			wantOutput(t, other, "cache all")
		})
	}
}

// A volume has one instance at a time: the second waits until the first has ended.
func TestAVolumeHasOneInstanceAtATime(t *testing.T) {
	d := newDriver(t, 2)
	a := start(t, d, "web-1", 1, keeps, "echo one > /var/lib/web/own; exec sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := startAs(ctx, d, "web-2", 1, keeps, "true")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("beside the first it starts: %v", err)
	}
	wantOutput(t, start(t, d, "web-3", 2, keeps, "echo $(ls /var/lib/web /srv/media)"),
		"/srv/media: /var/lib/web: cache")
	done := make(chan error, 1)
	go func() { done <- a.Remove(context.Background()) }()
	b, err := startAs(t.Context(), d, "web-4", 1, keeps, "cat /var/lib/web/own")
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, b, "one")
}

func TestReadOnlyAndReadOnlyVolumes(t *testing.T) {
	write := "for d in $DIRS; do touch $d/x 2>/dev/null && echo $d; done"
	change := func(s *pando.Spec) {
		keeps(s)
		s.ReadOnly, s.Volumes[1].ReadOnly = true, true
		s.Environment = map[string]string{
			"DIRS": "/ /data . /var/lib/web /srv/media /var/lib/web/cache"}
	}
	host := newDriver(t, 0)
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, start(t, host, "web-1", 1, func(s *pando.Spec) { change(s); s.WorkingDir = dir },
		write), "/var/lib/web /var/lib/web/cache")
	wantOutput(t, start(t, newImageDriver(t, 0), "web-1", 1,
		func(s *pando.Spec) { withImage(s); change(s) }, write), "/var/lib/web /var/lib/web/cache")
}

// Two services never have one uid, and one service always has the same.
func TestVolumesBelongToTheirService(t *testing.T) {
	d := newDriver(t, 0)
	named := func(name string) func(*pando.Spec) {
		return func(s *pando.Spec) { keeps(s); s.Name = pando.ServiceName(name) }
	}
	uids := map[string]string{}
	for _, c := range []struct{ id, service string }{
		{"web-1", "web"}, {"db-1", "db"}, {"web-2", "web"}} {
		b := start(t, d, c.id, 1, named(c.service), "id -u")
		exited(t, b)
		got := b.LastLines(1)[0]
		if was, ok := uids[c.service]; ok && was != got {
			t.Errorf("%s runs as %s, and then as %s", c.service, was, got)
		}
		uids[c.service] = got
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if uids["web"] == uids["db"] {
		t.Errorf("two services run as %s", uids["web"])
	}
	_, err := startAs(t.Context(), d, "web-3", 1, func(s *pando.Spec) { keeps(s); s.User = "1234" },
		"true")
	if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "name the former user") {
		t.Errorf("another user gets the files: %v", err)
	}
	if _, err := startAs(t.Context(), d, "web-4", 0, keeps, "true"); !errors.Is(err,
		pando.ErrUnsupported) {
		t.Errorf("without an ordinal: %v", err)
	}
	d.kept = volume.New("", "h1", d.Clock)
	if _, err := startAs(t.Context(), d, "web-5", 1, keeps, "true"); !errors.Is(err,
		pando.ErrUnsupported) {
		t.Errorf("without a folder of volumes: %v", err)
	}
}

// A program cannot put a link in a volume that leads the next mount out of its sandbox.
// Root of an image leaves programs of root in its volumes. A user of the host reaches none of them,
// also below a data folder that everybody enters.
func TestNoUserOfTheHostEntersAVolume(t *testing.T) {
	d := newDriverIn(t, 0, cgroup.Root, func(c *Config) {
		if err := errors.Join(os.Mkdir(c.Volumes, 0o755), os.Chmod(c.Volumes, 0o755)); err != nil {
			t.Fatal(err)
		}
	})
	st, err := os.Lstat(d.Volumes)
	if err != nil || st.Mode().Perm() != 0o700 || volume.OwnerOf(st) != 0 {
		t.Errorf("the folder of the volumes is %v, %v", st, err)
	}
	exited(t, start(t, d, "web-1", 1, keeps, "echo kept >/var/lib/web/file"))
	if st, err = os.Lstat(d.Volumes); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("after a start it is %v, %v", st, err)
	}
}

func TestALinkInAVolumeLeadsNowhere(t *testing.T) {
	d, secret := newDriver(t, 0), t.TempDir()
	a := start(t, d, "web-1", 1, func(s *pando.Spec) { keeps(s); s.Tmpfs = nil },
		"ln -s /.host"+secret+" /var/lib/web/cache && ln -s /../../.. /var/lib/web/up")
	if e := exited(t, a); e.Code != 0 {
		t.Fatal(a.LastLines(5))
	}
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := startAs(t.Context(), d, "web-2", 1, keeps, "touch /var/lib/web/cache/x")
	if err == nil || !strings.Contains(err.Error(), "check `volumes`, `folders`") {
		t.Errorf("over a link: %v", err)
	}
	if all, _ := os.ReadDir(secret); len(all) > 0 {
		t.Errorf("the host has %v", all)
	}
}

func TestASlotOfAnOlderBuildMountsNoVolume(t *testing.T) {
	d := newDriver(t, 0)
	old, err := d.pool.make()
	if err != nil {
		t.Fatal(err)
	}
	old.Mounts = false
	d.pool.mu.Lock()
	d.pool.ready = append(d.pool.ready, old)
	d.pool.mu.Unlock()
	b := start(t, d, "web-1", 1, keeps, "sleep 60")
	for _, at := range []string{"/var/lib/web", "/var/lib/web/cache", "/srv/media"} {
		if got := inside(t, b, "mountpoint -q "+at+" && echo yes"); got != "yes" {
			t.Errorf("%s is not mounted", at)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(d.Volumes, "default/web/data"), &st); err != nil {
		t.Error(err)
	}
}

// A spec may have /run and /dev/shm in memory of another size or mode, as hardened Compose files
// do. The sockets of the instance stay in /run, and its user may write there.
func TestFoldersOfTheInstanceMayBeInMemory(t *testing.T) {
	const script = `stat -f -c %b:%S /dev/shm; stat -c %a /run; echo x > /run/pid && cat /run/pid
		ls -d /run/pando/self.sock; cd /; echo y > /dev/shm/y && cat /dev/shm/y
		while read -r _ at _ o _; do
			case $at in /run) a=$o ;; /tmp) b=$o ;; /dev/shm) c=$o ;; esac
		done </proc/mounts
		for o in $a $b $c; do case $o in *noexec*) echo inert ;; *) echo runs ;; esac; done`
	change := func(s *pando.Spec) {
		s.ReadOnly = true
		s.Tmpfs = []pando.Tmpfs{{Path: "/run", NoExec: true}, {Path: "/dev/shm", Bytes: 4 << 20},
			{Path: "/tmp", NoExec: true}}
	}
	for name, c := range map[string]struct {
		driver func(*testing.T, int) *Driver
		change func(*pando.Spec)
	}{
		"of the host": {newDriver, change},
		"of an image": {newImageDriver, func(s *pando.Spec) { withImage(s); change(s); s.User = "1000" }},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, c.driver(t, 1), "web-1", 0, c.change, script)
			wantOutput(t, b, "1024:4096 1777 x /run/pando/self.sock y inert inert runs")
		})
	}
}

// Every user of an instance may send echo requests.
func TestAnInstancePings(t *testing.T) {
	const script = "echo $(cat /proc/sys/net/ipv4/ping_group_range)"
	d := newDriver(t, 1)
	b := start(t, d, "web-1", 0, func(*pando.Spec) {}, script)
	wantOutput(t, b, "0 2147483647")
	ping, err := exec.LookPath("ping")
	if err != nil {
		t.Skip("needs ping")
	}
	b = start(t, d, "web-2", 0, func(*pando.Spec) {},
		ping+" -c 1 -W 5 127.0.0.1 > /tmp/out 2>&1 && echo pong || cat /tmp/out")
	wantOutput(t, b, "pong")
}

// Two services of a tenant share a volume at the same time, also with other users.
func TestServicesShareAVolume(t *testing.T) {
	d := newImageDriver(t, 1)
	shares := func(name pando.ServiceName, of pando.ServiceName, user string) func(*pando.Spec) {
		return func(s *pando.Spec) {
			withImage(s)
			s.Name, s.User = name, user
			s.Volumes = []pando.Volume{{Name: "media", Path: "/srv/media", Shared: true, Of: of}}
		}
	}
	a := start(t, d, "init-1", 1, shares("init", "web", "0"),
		"echo one > /srv/media/x; ln -s x /srv/media/y; until [ -e /srv/media/z ]; do sleep 0.1; done")
	b := start(t, d, "web-1", 1, shares("web", "", "0"),
		"while ! [ -L /srv/media/y ]; do sleep 0.1; done; cat /srv/media/x; ls /srv/media; touch /srv/media/z")
	wantOutput(t, b, "one x y")
	wantOutput(t, a, "")
	all, err := d.VolumeStore().KeptVolumes(t.Context(), pando.VolumeQuery{})
	if err != nil || len(all) != 1 || all[0].Service.Name != "web" || all[0].Part != "shared" {
		t.Errorf("the host keeps %+v: %v", all, err)
	}
}
