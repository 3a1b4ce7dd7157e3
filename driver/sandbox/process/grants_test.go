package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/cgroup"
)

// opens is a script that tries to open devices, and one that it makes itself.
const opens = `for d in "$@"; do
	if (exec 3<>/dev/$d) 2>/dev/null; then echo $d opens; else echo $d closed; fi
done
for f in /folder/*; do
	if (exec 3<>$f) 2>/dev/null; then echo $f opens; else echo $f closed; fi
done
if mknod /tmp/own c 10 229 2>/dev/null && (exec 3<>/tmp/own) 2>/dev/null; then echo own opens
else echo own closed; fi
(: > /dev/new) 2>/dev/null && echo made a file in /dev
true
`

// needDevices skips a test on a machine without the devices that it gives.
func needDevices(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		f, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
		if err != nil {
			t.Skipf("needs /dev/%s: %v", name, err)
		}
		f.Close()
	}
}

// rootOfV2 mounts a hierarchy of v2 for a test.
func rootOfV2(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("cgroup2", root, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return root
}

// smuggled returns a folder of the host with a device file that anyone may open.
func smuggled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, up := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(up, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := filepath.Join(dir, "fuse")
	err := unix.Mknod(at, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229)))
	err = errors.Join(err, os.Chmod(at, 0o666))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// An instance opens the granted device and no other, as any user, with the files of the host or of
// an image, by any path.
func TestAnInstanceOpensTheGrantedDeviceAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	needDevices(t, "fuse", "kvm")
	roots := map[string]string{"v1": cgroup.Root, "v2": rootOfV2(t)}
	for _, c := range []struct {
		name, root string
		change     func(*pando.Spec)
		driver     func(*testing.T) *Driver
	}{
		{"its own user", "v1", func(*pando.Spec) {}, nil},
		{"root", "v1", func(s *pando.Spec) { s.User = "0" }, nil},
		{"root of the host", "v1", func(s *pando.Spec) {
			s.User, s.UsernsMode, s.SecurityOpt = "0", pando.UsernsHost, []string{pando.SeccompUnconfined}
		}, nil},
		{"its own user, v2", "v2", func(*pando.Spec) {}, nil},
		{"an image", "", withImage, func(t *testing.T) *Driver { return newImageDriver(t, 0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d *Driver
			if c.driver != nil {
				d = c.driver(t)
			} else {
				d = newDriverIn(t, 0, roots[c.root])
			}
			folder := smuggled(t)
			for _, given := range []string{"", "kvm", "fuse"} {
				b := run(t, d, func(s *pando.Spec) {
					c.change(s)
					s.Folders = []pando.Folder{{Path: folder, At: "/folder", Write: true}}
					if given != "" {
						s.Grants = []pando.Grant{pando.Grant("device=" + given)}
					}
				}, "/bin/sh", "-c", opens, "sh", "fuse", "kvm", "loop0", "mem")
				exited(t, b)
				got := strings.Join(b.LastLines(6), ",")
				want := "fuse closed,kvm closed,loop0 closed,mem closed,/folder/fuse closed,own closed"
				if given != "" {
					want = strings.Replace(want, given+" closed", given+" opens", 1)
				}
				if got != want {
					t.Errorf("with device=%s: %s, want %s", given, got, want)
				}
				if err := b.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestAGrantedPathIsTheHosts(t *testing.T) {
	d := newDriver(t, 1)
	const at = "/sys/kernel/mm"
	if _, err := os.Stat(at); err != nil {
		t.Skip("needs " + at)
	}
	b := run(t, d, func(s *pando.Spec) {
		s.Grants = []pando.Grant{"path=/proc/stat:ro", "path=" + at + ":rw"}
	}, "/bin/sh", "-c", `grep -E " (/proc/stat|/sys/kernel/mm) " /proc/self/mountinfo |
		while read a b c d e f g; do echo $e ${f%%,*}; done; cat /proc/stat > /dev/null && echo reads`)
	exited(t, b)
	got := strings.Join(b.LastLines(5), ",")
	if want := "/proc/stat ro," + at + " rw,reads"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAProgramHasTheNetworkOfItsHostWithTheGrantAlone(t *testing.T) {
	d := newDriver(t, 1)
	host, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, given := range []bool{false, true} {
		for _, user := range []string{"", "0"} {
			begun := fmt.Sprintf("begun %v %q", given, user) // the log has the lines of earlier ones
			b := run(t, d, func(s *pando.Spec) {
				s.User = user
				if given {
					s.Grants = []pando.Grant{pando.GrantHostNet}
				}
			}, "/bin/sh", "-c", `readlink /proc/self/ns/net; echo "$0"; sleep 100`, begun)
			t.Cleanup(func() { _ = b.Remove(t.Context()) })
			code, out, err := b.Exec(t.Context(), []string{"/bin/readlink", "/proc/self/ns/net"})
			if err != nil || code != 0 {
				t.Fatal(code, err, string(out))
			}
			if got := strings.TrimSpace(string(out)) == host; got != given {
				t.Errorf("granted %v: a command of user %q has %s, and the host %s", given, user, out, host)
			}
			awaitLine(t, b, begun)
			if got := b.LastLines(2)[0] == host; got != given {
				t.Errorf("granted %v: the program of user %q has the host's network: %v", given, user, got)
			}
			if err := b.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAMissingDeviceIsNamed(t *testing.T) {
	d := newDriver(t, 0)
	spec := pando.Spec{Name: "web", Command: []string{"/bin/true"}, WorkingDir: "/",
		Grants: []pando.Grant{"device=none/such"}}.WithDefaults()
	_, err := d.Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-1", Service: spec.Key()}, Spec: spec, VIP4: vip,
	})
	if !errors.Is(err, pando.ErrNotFound) || !strings.Contains(err.Error(), "/dev/none/such") {
		t.Errorf("%v, want it to name the device", err)
	}
}
