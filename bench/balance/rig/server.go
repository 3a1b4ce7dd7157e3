// Package rig is the test stand of benchmarks that compare ways to the same instances: network
// namespaces, a server, clients and the processor time of every program on the way. It never
// decides about the ways.
package rig

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"pando.run/pando/lab"
)

// Port is the port of every instance, and the published one.
const Port = 443

// serving is the mark of a process that is a server. Its value is the address.
const serving = "PANDO_RIG_SERVER"

// Main runs the tests in network and mount namespaces of their own. A process of Serve is a server
// instead.
func Main(m *testing.M) {
	if at := os.Getenv(serving); at != "" {
		fmt.Println(serve(at))
		os.Exit(1)
	}
	if err := lab.Alone("PANDO_BENCH_ALONE"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := address(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Host is the address of the host between the boxes.
var Host = netip.MustParseAddr("198.51.100.1")

// address gives the host its address, and lets it forward.
func address() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	own := &netlink.Addr{IPNet: netlink.NewIPNet(Host.AsSlice())}
	return errors.Join(netlink.AddrReplace(lo, own), set("ip_forward", "1"), enoughPorts())
}

func set(name, value string) error {
	return os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0)
}

// enoughPorts lets the caller's namespace open thousands of short connections a second. Otherwise
// the ports of closed ones stay taken for a minute.
func enoughPorts() error {
	return errors.Join(set("tcp_tw_reuse", "1"), set("ip_local_port_range", "1024 65535"))
}

// Serve starts a server in a box, as a process of its own, and waits until it answers.
func Serve(t testing.TB, b *lab.Box) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("nsenter", "--net="+b.Link.Netns, self)
	c.Env = append(os.Environ(), serving+"=:"+strconv.Itoa(Port), "GOMAXPROCS=1")
	p := Start(t, c)
	Await(t, "the server of "+b.Link.Host, func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(b.Link.IP4, Port).String(), time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return p
}

// serve answers each line that is a number with as many bytes.
func serve(at string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	body := strings.Repeat("x", 1<<20)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			in := bufio.NewScanner(c)
			for in.Scan() {
				n, err := strconv.Atoi(strings.TrimSpace(in.Text()))
				if err != nil || n > len(body) {
					return
				}
				if _, err := io.WriteString(c, body[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// Process is a program on the way. It ends with the test.
type Process struct{ PID int }

// Start starts a program. It ends with the test.
func Start(t testing.TB, c *exec.Cmd) *Process {
	t.Helper()
	var said strings.Builder
	c.Stdout, c.Stderr = &said, &said
	c.WaitDelay = time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGKILL)
		_ = c.Wait()
		if t.Failed() && said.Len() > 0 {
			t.Logf("%s: %s", c.Path, said.String())
		}
	})
	return &Process{c.Process.Pid}
}

// CPU returns the processor time of a process and its children so far.
func (p *Process) CPU() (sum time.Duration) {
	sum = spent(p.PID)
	lists, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
	for _, task := range lists {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", p.PID, task.Name()))
		for _, child := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(child); err == nil {
				sum += (&Process{pid}).CPU()
			}
		}
	}
	return sum
}

// spent returns the processor time of the threads of a process.
func spent(pid int) (sum time.Duration) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		if words := strings.Fields(string(text)); len(words) > 0 {
			n, _ := strconv.ParseInt(words[0], 10, 64)
			sum += time.Duration(n)
		}
	}
	return sum
}

// Await waits until a condition holds.
func Await(t testing.TB, what string, holds func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
