//go:build bench

package crowd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// bareRole is the first argument of the process that makes the bare starts.
const bareRole = "bare"

// bareMain starts a program some times with the kernel alone: namespaces, a veth pair, clone and
// exec. It prints the seconds until all of them take connections.
func bareMain(args []string) int {
	count, err := strconv.Atoi(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var mu sync.Mutex
	var errs []error
	var ends []func()
	var working sync.WaitGroup
	next := make(chan int)
	began := time.Now()
	for range 4 * runtime.NumCPU() {
		working.Go(func() {
			for n := range next {
				end, err := bare(args[1], n)
				mu.Lock()
				errs, ends = append(errs, err), append(ends, end)
				mu.Unlock()
			}
		})
	}
	for n := range count {
		next <- n
	}
	close(next)
	working.Wait()
	took := time.Since(began)
	for _, end := range ends {
		end()
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(took.Seconds())
	return 0
}

// bare starts one program and waits until it takes connections. The function end ends it.
func bare(program string, n int) (end func(), err error) {
	cmd := exec.Command(program)
	cmd.Env = []string{"PANDO_INSTANCE=bare"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWNET,
	}
	if err := cmd.Start(); err != nil {
		return func() {}, err
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	inner := net.IPv4(10, 99, byte(n>>6), byte(n<<2)|2)
	if err := link(cmd.Process.Pid, n, net.IPv4(10, 99, byte(n>>6), byte(n<<2)|1), inner); err != nil {
		return end, err
	}
	// The first packets on a new link may be lost, and the kernel would repeat them after a second.
	wait := 5 * time.Millisecond
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		began := time.Now()
		c, err := net.DialTimeout("tcp", inner.String()+":8080", wait)
		if err == nil {
			c.Close()
			return end, nil
		}
		if time.Since(began) >= wait {
			wait += wait / 2
		}
		<-time.After(time.Millisecond)
	}
	return end, fmt.Errorf("program %d takes no connection", n)
}

// link joins a process to the host by a veth pair.
func link(pid, n int, outer, inner net.IP) error {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	in, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer in.Close()
	name := fmt.Sprintf("bare%d", n)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "bare",
		PeerNamespace: netlink.NsFd(int(ns))}
	host := &netlink.Handle{}
	if err := host.LinkAdd(veth); err != nil {
		return err
	}
	if err := up(in, "lo", nil); err != nil {
		return err
	}
	return errors.Join(up(host, name, outer), up(in, "bare", inner))
}

func up(h *netlink.Handle, name string, ip net.IP) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if ip != nil {
		err = h.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(30, 32)}})
	}
	return errors.Join(err, h.LinkSetUp(l))
}
