//go:build bench

package haven

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/bench/balance/rig"
	"pando.run/pando/driver/network/ebpf"
	"pando.run/pando/lab"
)

// serving is the mark of a process that is a member.
const serving = "PANDO_HAVEN_MEMBER"

// The names of the ways.
const (
	byScore     = "Pando by score"
	byTurns     = "Pando by turns"
	haproxy     = "HAProxy"
	translation = "nftables"
)

const port = 80

var vip = netip.MustParseAddr("10.127.0.7")

// way is a way of requests to the members.
type way struct {
	name       string
	to         netip.AddrPort
	begin, end func() error
}

// hall has the client, the members and a middlebox, each with a link of its own.
type hall struct {
	client, middle *lab.Box
	members        []*lab.Box
	programs       []*rig.Process
	steering       *ebpf.Driver
	ways           []way
}

func newHall(t *testing.T, members int) *hall {
	t.Helper()
	h := &hall{client: boxOf(t, "hclient", "192.0.2.1"), middle: boxOf(t, "hmiddle", "192.0.2.9")}
	// The direction to the client, and both directions of the middlebox.
	shape(t, nil, "hclient", clientLink)
	shape(t, nil, "hmiddle", middleLink)
	shape(t, h.middle, "eth0", middleLink)
	for n := range members {
		b := boxOf(t, fmt.Sprintf("hm%d", n), fmt.Sprintf("10.128.0.%d", n+2), vip)
		shape(t, b, "eth0", serverLink*servers/members)
		h.members = append(h.members, b)
		h.programs = append(h.programs, startMember(t, b))
	}
	d, end := rig.Open(t, "haven", "hclient")
	t.Cleanup(end)
	h.steering = d
	middle := netip.AddrPortFrom(h.middle.Link.IP4, port)
	scores, stop := h.scoring()
	h.ways = []way{
		{name: byScore, to: netip.AddrPortFrom(vip, port), begin: scores, end: stop},
		{name: byTurns, to: netip.AddrPortFrom(vip, port), begin: func() error {
			return h.publish(pando.ByRoundRobin)
		}},
		{name: haproxy, to: netip.AddrPortFrom(middle.Addr(), port+1)},
		{name: translation, to: middle},
	}
	h.startHAProxy(t, port+1)
	h.translate(t)
	if err := h.publish(pando.ByRoundRobin); err != nil {
		t.Fatal(err)
	}
	for _, w := range h.ways {
		rig.Await(t, w.name, func() error { return h.get(w.to) })
	}
	return h
}

func boxOf(t *testing.T, name, ip string, vips ...netip.Addr) *lab.Box {
	t.Helper()
	b, err := lab.NewBox(name, netip.MustParseAddr(ip), netip.Addr{}, vips...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// shape limits the sent bytes of a device. Nil is the host's namespace.
func shape(t *testing.T, b *lab.Box, device string, megabits int) {
	t.Helper()
	command := []string{"tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate",
		fmt.Sprintf("%dmbit", megabits), "burst", "256kb", "latency", "50ms"}
	if b != nil {
		command = append([]string{"nsenter", "--net=" + b.Link.Netns}, command...)
	}
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("limit the link %s: %v: %s", device, err, out)
	}
}

// publish steers the service by a policy.
func (h *hall) publish(by pando.BalanceBy) error {
	ports := []pando.Port{{Published: port, Target: port, Protocol: pando.TCP}}
	table := pando.SteeringTable{Service: pando.DefaultService("web"), VIP4: vip, Ports: ports, By: by}
	for n, b := range h.members {
		err := h.steering.Connect(context.Background(), b.Link, ports, vip, netip.Addr{})
		if err != nil {
			return err
		}
		table.Endpoints = append(table.Endpoints,
			pando.Endpoint{Instance: member(n), Weight: 100, Link: b.Link})
	}
	return h.steering.Publish(context.Background(), table)
}

func member(n int) pando.InstanceID { return pando.InstanceID(fmt.Sprintf("web-%02d", n)) }

// scoring measures the processor of each member every 100 ms and writes the scores, as an agent
// does. It returns how to begin and how to end.
func (h *hall) scoring() (begin, end func() error) {
	var stop context.CancelFunc
	done := make(chan error, 1)
	begin = func() error {
		if err := h.publish(pando.ByScore); err != nil {
			return err
		}
		var ctx context.Context
		ctx, stop = context.WithCancel(context.Background())
		go func() { done <- h.score(ctx) }()
		return nil
	}
	return begin, func() error { stop(); return <-done }
}

func (h *hall) score(ctx context.Context) error {
	every := time.NewTicker(pando.MeterDefault)
	defer every.Stop()
	former, at := make([]time.Duration, len(h.members)), time.Now()
	ids := make([]pando.InstanceID, len(h.members))
	for n := range ids {
		ids[n], former[n] = member(n), h.programs[n].CPU()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-every.C:
			load := map[pando.InstanceID]balance.Load{}
			for n, p := range h.programs {
				used := p.CPU()
				load[ids[n]] = balance.Load{CPU: (used - former[n]).Seconds() / now.Sub(at).Seconds()}
				former[n] = used
			}
			at = now
			r := pando.Ranking{Scores: balance.Scores(pando.WeightsDefault, ids, load)}
			err := h.steering.Score(context.Background(), pando.DefaultService("web"), r)
			if err != nil {
				return err
			}
		}
	}
}

// startHAProxy starts a proxy of HTTP in the middlebox, as in the paper.
func (h *hall) startHAProxy(t *testing.T, at int) {
	t.Helper()
	var list strings.Builder
	for n, b := range h.members {
		fmt.Fprintf(&list, "  server s%d %s:%d\n", n, b.Link.IP4, port)
	}
	file := t.TempDir() + "/haproxy"
	err := os.WriteFile(file, fmt.Appendf(nil, `global
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 1m
  timeout server 1m
listen web
  bind %s:%d
  balance roundrobin
%s`, h.middle.Link.IP4, at, list.String()), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	rig.Start(t, exec.Command("nsenter", "--net="+h.middle.Link.Netns, "haproxy", "-db", "-f", file))
}

// translate lets the middlebox translate addresses both ways.
func (h *hall) translate(t *testing.T) {
	t.Helper()
	var list []string
	for n, b := range h.members {
		list = append(list, fmt.Sprintf("%d : %s", n, b.Link.IP4))
	}
	rules := fmt.Sprintf(`table ip haven {
  chain pre { type nat hook prerouting priority dstnat;
    tcp dport %d dnat to numgen inc mod %d map { %s }
  }
  chain post { type nat hook postrouting priority srcnat; masquerade; }
}
`, port, len(list), strings.Join(list, ", "))
	c := exec.Command("nsenter", "--net="+h.middle.Link.Netns, "nft", "-f", "-")
	c.Stdin = strings.NewReader(rules)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	err := h.middle.Inside(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// get asks a way for one small file.
func (h *hall) get(to netip.AddrPort) error {
	out, err := exec.Command("nsenter", "--net="+h.client.Link.Netns, "httperf", "--hog", "--server",
		to.Addr().String(), "--port", fmt.Sprint(to.Port()), "--uri", "/1", "--num-conns", "1",
		"--timeout", "2").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	_, err = read(string(out))
	return err
}

// startMember starts a member in a box, as a process of its own.
func startMember(t *testing.T, b *lab.Box) *rig.Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("nsenter", "--net="+b.Link.Netns, self)
	c.Env = append(os.Environ(), serving+"=1", "GOMAXPROCS=1")
	return rig.Start(t, c)
}

// serveFiles serves /N as a file of N bytes.
func serveFiles() error {
	block := make([]byte, 1<<16)
	return http.ListenAndServe(fmt.Sprintf(":%d", port), http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			left, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
			if err != nil {
				http.Error(w, "want /BYTES", http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(left))
			for left > 0 {
				n, err := w.Write(block[:min(left, len(block))])
				if err != nil {
					return
				}
				left -= n
			}
		}))
}
