//go:build bench

package replicate

import (
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// bare starts the program with the kernel alone: a network namespace, a veth pair, clone and exec.
// It returns the time to the first byte of the answer.
func (b *bench) bare(round int, program string) time.Duration {
	subnet := fmt.Sprintf("10.99.%d.", round)
	began := time.Now()
	ns, link := b.network(subnet)
	defer ns.Close()
	cmd := exec.Command(program)
	cmd.Env = []string{"PANDO_INSTANCE=bare"} // its name
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with this goroutine
		if err := netns.Set(ns); err != nil {
			started <- err
			return
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		}
		started <- cmd.Start()
	}()
	if err := <-started; err != nil {
		b.Fatalf("start the program by hand: %v", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		link()
	}()
	return b.first(subnet+"2:8080", "nobody").Sub(began)
}

// network makes a namespace and a veth pair to the host's namespace. The function remove deletes
// the pair.
func (b *bench) network(subnet string) (ns netns.NsHandle, remove func()) {
	ns, remove, err := b.connected(subnet)
	if err != nil {
		b.Fatalf("make a namespace by hand: %v", err)
	}
	return ns, remove
}

func (b *bench) connected(subnet string) (ns netns.NsHandle, remove func(), err error) {
	made := make(chan error)
	go func() {
		runtime.LockOSThread()
		var err error
		if ns, err = netns.New(); err == nil {
			var in *netlink.Handle
			if in, err = netlink.NewHandleAt(ns); err == nil {
				lo, _ := in.LinkByName("lo")
				err = in.LinkSetUp(lo)
				in.Close()
			}
		}
		made <- err
	}()
	if err := <-made; err != nil {
		return ns, nil, err
	}
	host, err := b.OnHost()
	if err != nil {
		return ns, nil, err
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "bare0"}, PeerName: "bare1",
		PeerNamespace: netlink.NsFd(int(ns))}
	if err := host.LinkAdd(veth); err != nil {
		return ns, nil, err
	}
	remove = func() { _ = host.LinkDel(veth); host.Close() }
	if err := up(host, "bare0", subnet+"1/24"); err != nil {
		return ns, remove, err
	}
	in, err := netlink.NewHandleAt(ns)
	if err != nil {
		return ns, remove, err
	}
	defer in.Close()
	return ns, remove, up(in, "bare1", subnet+"2/24")
}

func up(h *netlink.Handle, name, address string) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	ip, network, err := net.ParseCIDR(address)
	if err != nil {
		return err
	}
	if err := h.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: network.Mask}}); err != nil {
		return err
	}
	return h.LinkSetUp(l)
}

// OnHost opens netlink on the lab's host.
func (b *bench) OnHost() (*netlink.Handle, error) {
	ns, err := netns.GetFromPid(b.Lab.Hosts[0].Pid)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return netlink.NewHandleAt(ns)
}
