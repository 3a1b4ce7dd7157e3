package steering

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// Sleep checks that the first packets of a service that sleeps wait for its first endpoint, with
// real sockets. Their clients repeat nothing.
func Sleep(t *testing.T, open func(t *testing.T, uplinks ...string) Subject) {
	s := newStand(t, open, "a")
	serve(t, s.boxes["a"], "a")
	for six, family := range []string{"IPv4", "IPv6"} {
		t.Run(family+" from the host", func(t *testing.T) {
			s.wakes(t, func() (*client, error) { return dialTo(netip.AddrPortFrom(vip[six], 80)) })
		})
		t.Run(family+" from outside", func(t *testing.T) {
			s.wakes(t, func() (c *client, err error) {
				err = s.outside.Inside(func() (err error) {
					before := retries(t)
					c, err = dialTo(netip.AddrPortFrom(vip[six], 80))
					if after := retries(t); err == nil && after != before {
						t.Errorf("the client repeated a packet: %s, then %s", before, after)
					}
					return err
				})
				return c, err
			})
		})
	}
	t.Run("a flood is bounded", s.floodsASleeper)
}

// retries returns the retransmissions of a network namespace.
func retries(t *testing.T) string {
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		t.Error(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == "Tcp:" {
			rows = append(rows, fields)
		}
	}
	for n, name := range rows[0] {
		if name == "RetransSegs" {
			return rows[1][n]
		}
	}
	t.Error("no RetransSegs")
	return ""
}

// asleep publishes web without an endpoint.
func (s *stand) asleep(t *testing.T) {
	t.Helper()
	check(t, s.Publish(t.Context(), pando.SteeringTable{
		Service: web, VIP4: vip[0], VIP6: vip[1], Ports: webPorts, Asleep: true,
	}))
}

// knocked waits for a first packet of web.
func (s *stand) knocked(t *testing.T) {
	t.Helper()
	select {
	case got := <-s.Knocks():
		if got != web {
			t.Errorf("a knock at %s, want %s", got, web)
		}
	case <-time.After(wait):
		t.Fatal("no knock")
	}
}

// wakes connects to a service that sleeps, and wakes it after the knock.
func (s *stand) wakes(t *testing.T, connect func() (*client, error)) {
	s.asleep(t)
	type result struct {
		c   *client
		err error
	}
	done := make(chan result, 1)
	go func() {
		c, err := connect()
		done <- result{c, err}
	}()
	s.knocked(t)
	s.publish(t, s.endpoint("a", 100))
	r := <-done
	check(t, r.err)
	defer r.c.Close()
	if who := r.c.who(t); who != "a" {
		t.Errorf("%s answered", who)
	}
}

// floodsASleeper sends more first packets than are held. All of the others are counted.
func (s *stand) floodsASleeper(t *testing.T) {
	s.asleep(t)
	const sent = 200
	before := s.drops(t).Packets[pando.DroppedNoEndpoint]
	for n := range sent {
		from := netip.AddrPortFrom(far[0], uint16(2000+n))
		p := tcp(from, netip.AddrPortFrom(vip[0], 80), "S")
		_, err := s.Try(Outside, s.outside.Link,
			p.Bytes(s.outside.Link.MAC, s.outside.Link.HostMAC), false)
		check(t, err)
	}
	deadline := time.Now().Add(wait)
	for s.drops(t).Packets[pando.DroppedNoEndpoint]-before < sent-64 {
		if time.Now().After(deadline) {
			t.Fatalf("%d dropped of %d, want all but 64",
				s.drops(t).Packets[pando.DroppedNoEndpoint]-before, sent)
		}
		time.Sleep(time.Millisecond)
	}
	s.knocked(t)
	flows := s.traffic(t)["a"][0]
	s.publish(t, s.endpoint("a", 100))
	if got := s.traffic(t)["a"][0] - flows; got != 64 {
		t.Errorf("%d held packets reached the endpoint, want 64", got)
	}
}
