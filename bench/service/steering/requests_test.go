//go:build bench

package steering

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/lab"
)

// frame returns a TCP segment from far to the VIP's port 443.
func frame(six int, flags byte) []byte {
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00}
	if six == 1 {
		b[12], b[13] = 0x86, 0xdd
		b = append(b, 0x60, 0, 0, 0, 0, 20, 6, 64)
	} else {
		b = append(b, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0)
	}
	b = append(append(b, far[six].AsSlice()...), vip[six].AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, 12345)
	b = binary.BigEndian.AppendUint16(b, 443)
	return append(b, 0, 0, 0, 1, 0, 0, 0, 1, 5<<4, flags, 4, 0, 0, 0, 0, 0)
}

// answer returns the instance's answer to the SYN of that frame. The next frame then shows that the
// client got it, and the flow is established.
func answer(six int) []byte {
	b := frame(six, 2|16)
	addresses, each := b[26:34], 4
	if six == 1 {
		addresses, each = b[22:54], 16
	}
	copy(b, []byte{2, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0})
	copy(addresses, slices.Concat(addresses[each:], addresses[:each]))
	ends := b[len(b)-20:]
	copy(ends, slices.Concat(ends[2:4], ends[:2], []byte{0, 0, 0, 0}))
	return b
}

const (
	connections = 16
	lasts       = 1200 * time.Millisecond // duration of one measurement
	request     = "GET / HTTP/1.1\r\nHost: web.pando\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
	answerBytes = 1024
)

// requests measures CPU time per request of 1 KB on open connections. This process is client and
// server, and the kernel's work for its packets counts as its own. Rounds of the two ways
// alternate.
func requests(s *sheet) {
	own := netip.MustParseAddr("10.128.0.2")
	instance := box(s.t, "bweb", own, netip.Addr{}, vip[0])
	outside := box(s.t, "bout", far[0], netip.Addr{})
	d := open(s.t, balance.Buckets, "bout")
	defer purge(s.t, d)
	if err := d.Connect(s.t.Context(), instance.Link, ports, vip[0], netip.Addr{}); err != nil {
		s.t.Fatal(err)
	}
	err := d.Publish(s.t.Context(), pando.SteeringTable{Service: web, VIP4: vip[0], Ports: ports,
		Endpoints: []pando.Endpoint{{Instance: "a", Weight: 100, Link: instance.Link}}})
	if err != nil {
		s.t.Fatal(err)
	}
	serve(s.t, instance)
	ways := map[string][]net.Conn{
		"to the VIP": dial(s.t, outside, vip[0]), "straight": dial(s.t, outside, own),
	}
	for round := range rounds {
		order := []string{"to the VIP", "straight"}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, way := range order {
			s.note(round, way, perRequest(s.t, ways[way]))
		}
	}
	latency(s, ways)
	r := s.ratio("to the VIP", "straight")
	s.row("CPU per request of 1 KB on open connections, through the VIP against straight to the "+
		"instance", "≤ 1.10 ×",
		fmt.Sprintf("%.2f × (%.1f µs against %.1f µs)", r, s.median("to the VIP"), s.median("straight")),
		r <= 1.10)
}

func box(t *testing.T, name string, ip4, ip6 netip.Addr, vips ...netip.Addr) *lab.Box {
	t.Helper()
	b, err := lab.NewBox(name, ip4, ip6, vips...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func serve(t *testing.T, b *lab.Box) {
	err := b.Inside(func() error {
		l, err := net.Listen("tcp", ":443")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					in, out := make([]byte, len(request)), make([]byte, answerBytes)
					for {
						if _, err := io.ReadFull(c, in); err != nil {
							return
						}
						if _, err := c.Write(out); err != nil {
							return
						}
					}
				}()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func dial(t *testing.T, from *lab.Box, to netip.Addr) (out []net.Conn) {
	for range connections {
		err := from.Inside(func() error {
			c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 443).String(), 5*time.Second)
			out = append(out, c)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func ask(c net.Conn, answer []byte) error {
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	_, err := io.ReadFull(c, answer)
	return err
}

// perRequest returns the CPU time of one request in microseconds.
func perRequest(t *testing.T, all []net.Conn) float64 {
	var wg sync.WaitGroup
	counts := make([]int, len(all))
	begin, until := cpu(t), time.Now().Add(lasts)
	for n, c := range all {
		wg.Go(func() {
			answer := make([]byte, answerBytes)
			for time.Now().Before(until) {
				if err := ask(c, answer); err != nil {
					t.Error(err)
					return
				}
				counts[n]++
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return float64((cpu(t) - begin).Microseconds()) / float64(max(sum, 1))
}

func cpu(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// latency measures requests at a fixed rate; the ways take turns.
func latency(s *sheet, ways map[string][]net.Conn) {
	const each, every = 1500, 2 * time.Millisecond
	took := map[string][]float64{}
	answer := make([]byte, answerBytes)
	due := time.NewTicker(every)
	defer due.Stop()
	for n := range 2 * each {
		way := []string{"to the VIP", "straight"}[n%2]
		<-due.C
		begin := time.Now()
		if err := ask(ways[way][n/2%connections], answer); err != nil {
			s.t.Fatal(err)
		}
		took[way] = append(took[way], float64(time.Since(begin))/1000)
	}
	for way, all := range took {
		slices.Sort(all)
		s.note(0, "latency "+way, all[len(all)/2])
	}
	v, w := s.median("latency to the VIP"), s.median("latency straight")
	s.row("latency of one request at 500 per second, through the VIP against straight to the "+
		"instance, p50", "", fmt.Sprintf("%.2f × (%.0f µs against %.0f µs)", v/w, v, w), true)
}
