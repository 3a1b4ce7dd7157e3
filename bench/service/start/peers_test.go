//go:build bench

package start

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// network is a network namespace with one end of a veth pair in it. Both ends are up.
type network struct {
	ns   netns.NsHandle
	link string
	ip   string
}

var networks int

// newNetwork makes a network in the same way as the plug-in of a container runtime.
func newNetwork(t *testing.T) network {
	t.Helper()
	networks++
	n := network{link: fmt.Sprintf("peer%d", networks), ip: fmt.Sprintf("198.18.%d.%d",
		networks/64, networks%64*4+2)}
	done := make(chan error)
	go func() {
		done <- func() error {
			runtime.LockOSThread() // the thread ends with the goroutine
			host, err := netns.Get()
			if err != nil {
				return err
			}
			defer host.Close()
			if n.ns, err = netns.New(); err != nil {
				return err
			}
			veth := netlink.NewVeth(netlink.NewLinkAttrs())
			veth.Name, veth.PeerName, veth.PeerNamespace = "eth0", n.link, netlink.NsFd(int(host))
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			if err := up("eth0", n.ip+"/30"); err != nil {
				return err
			}
			return up("lo", "")
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := up(n.link, fmt.Sprintf("198.18.%d.%d/30", networks/64, networks%64*4+1)); err != nil {
		t.Fatal(err)
	}
	inside, err := netlink.NewHandleAt(n.ns)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	for end := time.Now().Add(patience); time.Now().Before(end); pause(t, pollWait) {
		// A SYN that is sent before both ends are operational is lost, and costs a second.
		near, err1 := netlink.LinkByName(n.link)
		far, err2 := inside.LinkByName("eth0")
		if err1 == nil && err2 == nil && near.Attrs().OperState == netlink.OperUp &&
			far.Attrs().OperState == netlink.OperUp {
			return n
		}
	}
	t.Fatal("the link does not come up")
	return n
}

func up(name, address string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if address != "" {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

func (n network) remove() {
	n.ns.Close()
	if l, err := netlink.LinkByName(n.link); err == nil {
		_ = netlink.LinkDel(l)
	}
}

// bare starts the program in namespaces only. It is the lower bound of a start.
func bare(t *testing.T, s samples, round int, program string) {
	t.Helper()
	for range each {
		begin := time.Now()
		n := newNetwork(t)
		cmd := exec.Command(program)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		}
		started := make(chan error)
		go func() {
			runtime.LockOSThread()
			if err := netns.Set(n.ns); err != nil {
				started <- err
				return
			}
			started <- cmd.Start()
		}()
		if err := <-started; err != nil {
			t.Fatal(err)
		}
		firstByte(t, n.ip+":8080")
		s.add(plain, round, time.Since(begin))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		n.remove()
	}
}

// container starts the program with an OCI runtime, from an existing bundle.
func container(t *testing.T, s samples, round int, runtimeName, program string) {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "rootfs")
	for _, sub := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "echo"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range each {
		id := fmt.Sprintf("start-%d-%d", round, n)
		begin := time.Now()
		net := newNetwork(t)
		if err := os.WriteFile(filepath.Join(dir, "config.json"), bundle(net, id), 0o600); err != nil {
			t.Fatal(err)
		}
		runOCI(t, runtimeName, dir, "run", "--detach", "--bundle", dir, id)
		firstByte(t, net.ip+":8080")
		s.add(runtimeName, round, time.Since(begin))
		runOCI(t, runtimeName, dir, "delete", "--force", id)
		net.remove()
	}
}

func runOCI(t *testing.T, name, dir string, args ...string) {
	t.Helper()
	said, err := os.CreateTemp(dir, "said") // a pipe would stay open as long as the container lives
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd := exec.Command(name, append([]string{"--root", filepath.Join(dir, "state")}, args...)...)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Run(); err != nil {
		_, _ = said.Seek(0, io.SeekStart)
		text, _ := io.ReadAll(said)
		t.Fatalf("%s %v: %v\n%s", name, args, err, text)
	}
}

// bundle returns the config.json of the same program with the same properties as in Pando:
// namespaces, limits, an unprivileged user.
func bundle(n network, id string) []byte {
	type object = map[string]any
	b, err := json.Marshal(object{
		"ociVersion": "1.0.2", "hostname": id, "root": object{"path": "rootfs", "readonly": true},
		"process": object{"user": object{"uid": 65534, "gid": 65534}, "args": []string{"/echo"},
			"cwd": "/", "noNewPrivileges": true},
		"mounts": []object{{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}},
		"linux": object{
			"cgroupsPath": "/bench-" + id, "resources": object{"memory": object{"limit": 128 << 20}},
			"namespaces": []object{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"},
				{"type": "network", "path": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(n.ns))}},
		},
	})
	if err != nil {
		panic(err) // all values are valid in JSON
	}
	return b
}
