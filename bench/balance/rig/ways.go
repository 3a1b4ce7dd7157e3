package rig

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/driver/network/ebpf"
	"pando.run/pando/driver/network/ovs"
	"pando.run/pando/lab"
)

// VIP is the address of the service by every way of Pando.
var VIP = netip.MustParseAddr("10.127.0.7")

// The address of the service by nftables, in its rules only.
var translated = netip.MustParseAddr("203.0.113.7")

// The ports of the proxies.
const (
	haproxyPort = 8081
	nginxPort   = 8082
)

// Stand is a client, a host and the instances of one service.
type Stand struct {
	t       testing.TB
	Client  *lab.Box
	Boxes   []*lab.Box
	Servers []*Process
}

// NewStand makes instances of a service and starts their servers.
func NewStand(t testing.TB, instances int) *Stand {
	t.Helper()
	s := &Stand{t: t, Client: boxOf(t, "rout", netip.MustParseAddr("192.0.2.1"))}
	if err := s.Client.Inside(enoughPorts); err != nil {
		t.Fatal(err)
	}
	for n := range instances {
		b := boxOf(t, fmt.Sprintf("pd%d", n), netip.AddrFrom4([4]byte{10, 128, 0, byte(n + 2)}), VIP)
		s.Boxes = append(s.Boxes, b)
		s.Servers = append(s.Servers, Serve(t, b))
	}
	return s
}

func boxOf(t testing.TB, name string, ip netip.Addr, vips ...netip.Addr) *lab.Box {
	t.Helper()
	b, err := lab.NewBox(name, ip, netip.Addr{}, vips...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// Way is a way of requests to the instances.
type Way struct {
	Name string
	To   func(n int) netip.AddrPort
	On   []*Process // other programs that pass the packets on
	// Begin sets the way up before a measurement, and End takes it away. Nil: it is always there.
	Begin, End func() error
}

func always(a netip.Addr, port uint16) func(int) netip.AddrPort {
	return func(int) netip.AddrPort { return netip.AddrPortFrom(a, port) }
}

// Straight sends each connection to the next instance, without anything on the way.
func (s *Stand) Straight() Way {
	return Way{Name: "straight", To: func(n int) netip.AddrPort {
		return netip.AddrPortFrom(s.Boxes[n%len(s.Boxes)].Link.IP4, Port)
	}}
}

// publish connects the instances to a steering and publishes them.
func (s *Stand) publish(d pando.Steering) {
	s.t.Helper()
	if err := s.publishAt(d, pando.AtPacket); err != nil {
		s.t.Fatal(err)
	}
}

// publishAt does so with a moment of the choice.
func (s *Stand) publishAt(d pando.Steering, at pando.BalanceAt) error {
	ports := []pando.Port{{Published: Port, Target: Port, Protocol: pando.TCP}}
	table := pando.SteeringTable{Service: pando.DefaultService("web"), VIP4: VIP, Ports: ports,
		At: at}
	for n, b := range s.Boxes {
		if err := d.Connect(s.t.Context(), b.Link, ports, VIP, netip.Addr{}); err != nil {
			return err
		}
		table.Endpoints = append(table.Endpoints, pando.Endpoint{
			Instance: pando.InstanceID(fmt.Sprintf("web-%d", n)), Weight: 100, Link: b.Link,
		})
	}
	return d.Publish(s.t.Context(), table)
}

// Open opens a driver of steering with pins of its own, for an uplink. end purges it.
func Open(t testing.TB, pins, uplink string) (d *ebpf.Driver, end func()) {
	t.Helper()
	d, err := ebpf.Open(ebpf.Config{
		PinDir: "/sys/fs/bpf/pando/" + pins, Buckets: balance.Buckets, Uplinks: []string{uplink},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d, func() {
		if err := d.Purge(); err != nil {
			t.Error(err)
		}
	}
}

// EBPF is the way of driver/network/ebpf. The caller ends it.
func (s *Stand) EBPF() (Way, func()) {
	s.t.Helper()
	d, end := Open(s.t, "bench", "rout")
	s.publish(d)
	return Way{Name: "eBPF", To: always(VIP, Port)}, end
}

// OVS is a way of driver/network/ovs, with a switch of its own. The caller ends it.
func (s *Stand) OVS(m ovs.Mode) (Way, func()) {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "rig-ovs")
	if err != nil {
		s.t.Fatal(err)
	}
	daemons, err := ovs.Start(s.t.Context(), dir)
	if err != nil {
		s.t.Fatal(err)
	}
	d, err := ovs.Open(s.t.Context(), ovs.Config{
		RunDir: dir, StateDir: filepath.Join(dir, "state"), PinDir: "/sys/fs/bpf/pando-ovs/bench",
		Mode:  m,
		Stack: ebpf.Stack{Config: ebpf.Config{Uplinks: []string{"rout"}}},
	})
	if err != nil {
		_ = daemons.Stop()
		s.t.Fatal(err)
	}
	var once sync.Once
	end := func() {
		once.Do(func() {
			for _, err := range []error{d.Purge(), daemons.Stop(), os.RemoveAll(dir)} {
				if err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	s.t.Cleanup(end) // of a test that fails before the caller ends it
	s.publish(d)
	var pid int
	text, err := os.ReadFile(filepath.Join(dir, "ovs-vswitchd.pid"))
	if err == nil {
		_, err = fmt.Sscan(string(text), &pid)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	name := map[ovs.Mode]string{ovs.Learn: "OVS learn", ovs.Group: "OVS group"}[m]
	return Way{Name: name, To: always(VIP, Port), On: []*Process{{pid}}}, end
}

// HAProxy is a proxy of TCP from Debian.
func (s *Stand) HAProxy() Way {
	s.t.Helper()
	var list strings.Builder
	for n, b := range s.Boxes {
		fmt.Fprintf(&list, "  server s%d %s:%d\n", n, b.Link.IP4, Port)
	}
	return s.proxy("HAProxy", haproxyPort, fmt.Sprintf(`global
  maxconn 4096
defaults
  mode tcp
  timeout connect 5s
  timeout client 1m
  timeout server 1m
listen web
  bind %s:%d
  balance roundrobin
%s`, Host, haproxyPort, list.String()), "haproxy", "-db", "-f")
}

// Nginx is nginx's stream module from Debian.
func (s *Stand) Nginx() Way {
	s.t.Helper()
	var list strings.Builder
	for _, b := range s.Boxes {
		fmt.Fprintf(&list, "    server %s:%d;\n", b.Link.IP4, Port)
	}
	return s.proxy("nginx stream", nginxPort, fmt.Sprintf(`load_module modules/ngx_stream_module.so;
daemon off;
master_process off;
user root;
pid %s/rig-nginx.pid;
error_log /dev/null;
events { worker_connections 4096; }
stream {
  access_log off;
  upstream web {
%s  }
  server { listen %s:%d; proxy_pass web; }
}
`, s.t.TempDir(), list.String(), Host, nginxPort), "nginx", "-c")
}

// proxy starts a program with a configuration, and waits until it serves.
func (s *Stand) proxy(name string, port uint16, config string, command ...string) Way {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		s.t.Fatalf("%v: apt-get install haproxy nginx-light libnginx-mod-stream nftables "+
			"openvswitch-switch", err)
	}
	p := Start(s.t, exec.Command(command[0], append(command[1:], file)...))
	w := Way{Name: name, To: always(Host, port), On: []*Process{p}}
	Await(s.t, name, func() error {
		_, err := Load{
			From: s.Client, To: w.To, Bytes: 1, Short: true, Clients: 1, Lasts: time.Millisecond,
		}.Run()
		return err
	})
	return w
}

// Nftables translates the address in the host. Its rules exist during its measurements only: they
// make the kernel track every connection.
func (s *Stand) Nftables() Way {
	var list []string
	for n, b := range s.Boxes {
		list = append(list, fmt.Sprintf("%d : %s", n, b.Link.IP4))
	}
	rules := fmt.Sprintf(`table ip rig {
  chain pre { type nat hook prerouting priority dstnat;
    ip daddr %s tcp dport %d dnat to numgen inc mod %d map { %s }
  }
}
`, translated, Port, len(list), strings.Join(list, ", "))
	nft := func(args ...string) error {
		c := exec.Command("nft", args...)
		c.Stdin = strings.NewReader(rules)
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}
	return Way{
		Name: "nftables", To: always(translated, Port),
		Begin: func() error { return nft("-f", "-") },
		End:   func() error { return nft("delete", "table", "ip", "rig") },
	}
}

// Cost is the result of one measurement of a way.
type Cost struct {
	Requests  int
	PerSecond float64
	// PerRequest is the processor time of a request, of client, servers, everything on the way and the
	// kernel's work for them, in microseconds.
	PerRequest float64
	// Way and Servers count the processors in use by programs on the way and by each server.
	Way     float64
	Servers []float64
	// Mean and Deviation are of the latency, in milliseconds.
	Mean, Deviation float64
}

// Measure applies a load to a way.
func (s *Stand) Measure(w Way, l Load) Cost {
	s.t.Helper()
	l.From, l.To = s.Client, w.To
	if w.Begin != nil {
		if err := w.Begin(); err != nil {
			s.t.Fatal(err)
		}
	}
	before, begin := s.spent(w), time.Now()
	took, err := l.Run()
	lasted, after := time.Since(begin), s.spent(w)
	if w.End != nil {
		if eerr := w.End(); eerr != nil {
			s.t.Fatal(eerr)
		}
	}
	if err != nil || len(took) == 0 {
		s.t.Fatalf("%s: %d requests, %v", w.Name, len(took), err)
	}
	c := Cost{Requests: len(took), PerSecond: float64(len(took)) / lasted.Seconds()}
	sum := time.Duration(0)
	for n := range after {
		d := after[n] - before[n]
		sum += d
		switch {
		case n == 0:
		case n <= len(s.Servers):
			c.Servers = append(c.Servers, d.Seconds()/lasted.Seconds())
		default:
			c.Way += d.Seconds() / lasted.Seconds()
		}
	}
	c.PerRequest = float64(sum.Microseconds()) / float64(len(took))
	c.Mean, c.Deviation = moments(took)
	return c
}

// spent returns the processor time of this process, of each server, and of each program on the way.
func (s *Stand) spent(w Way) []time.Duration {
	out := []time.Duration{own()}
	for _, p := range append(append([]*Process(nil), s.Servers...), w.On...) {
		out = append(out, p.CPU())
	}
	return out
}
