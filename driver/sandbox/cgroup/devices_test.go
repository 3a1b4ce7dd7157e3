package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// deviceAt returns the granted device of a file of the host.
func deviceAt(t *testing.T, name string) pando.Device {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/dev/"+name, &st); err != nil {
		t.Skipf("needs /dev/%s: %v", name, err)
	}
	return pando.Device{Name: name, Block: st.Mode&unix.S_IFMT == unix.S_IFBLK,
		Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
}

// Root in a group opens the usual devices and the granted ones, and no other.
func TestAGroupOpensItsDevicesAlone(t *testing.T) {
	for name, root := range map[string]string{"v1": Root, "v2": v2Root(t)} {
		t.Run(name, func(t *testing.T) {
			h, g := open(t, root)
			if want := name == "v2"; h.v2 != want {
				t.Skip("this machine has one hierarchy of v2 at " + Root)
			}
			fuse, loop := deviceAt(t, "fuse"), deviceAt(t, "loop0")
			try := func() string {
				out, err := os.CreateTemp(t.TempDir(), "out")
				if err != nil {
					t.Fatal(err)
				}
				defer out.Close()
				cmd := enter(t, root, g, "sh", "-c", `exec > "$0"
					for d in null tty fuse kvm loop0 loop1; do
						e=$( (exec 3<>/dev/$d) 2>&1 ); case "$e" in
						*ermitted*) echo $d refused;; *) echo $d passes;; esac
					done; (mknod /tmp/pando-no-such c 10 229) 2>/dev/null && echo made`, out.Name())
				_ = cmd.Wait()
				_ = os.Remove("/tmp/pando-no-such")
				text, err := os.ReadFile(out.Name())
				if err != nil {
					t.Fatal(err)
				}
				return strings.Join(strings.Split(strings.TrimSpace(string(text)), "\n"), ",")
			}
			if err := g.Devices(nil); err != nil {
				t.Fatal(err)
			}
			want := "null passes,tty passes,fuse refused,kvm refused,loop0 refused,loop1 refused"
			if got := try(); got != want {
				t.Errorf("without a grant: %s", got)
			}
			if err := g.Devices([]pando.Device{fuse, loop}); err != nil {
				t.Fatal(err)
			}
			want = "null passes,tty passes,fuse passes,kvm refused,loop0 passes,loop1 refused"
			if got := try(); got != want {
				t.Errorf("with two grants: %s", got)
			}
		})
	}
}

func TestAMachineThatHoldsNoDeviceBackGivesNone(t *testing.T) {
	root := t.TempDir()
	for _, c := range controllers {
		files(t, root, map[string]string{c + "/tasks": ""})
	}
	h, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	g, err := h.Make("web")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Devices(nil); err != nil {
		t.Errorf("nothing was granted: %v", err)
	}
	err = g.Devices([]pando.Device{{Name: "kvm", Major: 10, Minor: 232}})
	if !errors.Is(err, pando.ErrNotFound) || errors.Is(err, fs.ErrExist) {
		t.Errorf("%v, want it to name the controller", err)
	}
}
