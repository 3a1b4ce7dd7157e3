package steering

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/driver/network/ebpf"
)

// times returns the factor on the amount of tests at the gate (make soak).
func times() int {
	if n, err := strconv.Atoi(os.Getenv("PANDO_SOAK")); err == nil && n > 0 {
		return n
	}
	return 1
}

func openSize(t *testing.T, flows int, uplinks ...string) Subject {
	t.Helper()
	d, err := ebpf.Open(ebpf.Config{
		PinDir: pins, Uplinks: uplinks, Buckets: balance.Buckets, FlowsMax: flows,
	})
	if err != nil {
		t.Fatal(err)
	}
	return tcx{d}
}

func TestNoChangeBreaksAConnection(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	c := Change{Connections: 200, Events: 200,
		Seed: seed, Reopen: func(t *testing.T, s Subject) Subject {
			again := openTCX(t, "out")
			if err := s.(tcx).Close(); err != nil {
				t.Error(err)
			}
			return again
		}}
	if times() > 1 || measuring() {
		c.Connections = 2000
	}
	for n := range times() {
		c.Seed = seed + uint64(n)
		r := c.Run(t, openTCX)
		if r.Broken != 0 || r.Strays != 0 || r.Bridged < 10 {
			t.Fatalf("seed %d: %+v", c.Seed, r)
		}
		record(t, n, "open connections", float64(c.Connections))
		record(t, n, "broken", float64(r.Broken))
		record(t, n, "new connections", float64(r.Opened))
		t.Logf("seed %d: %d connections over %d events: %+v", c.Seed, c.Connections, c.Events, r)
	}
}

func TestNothingNewReachesWhoDrains(t *testing.T) {
	connections := 3000 * times()
	if measuring() {
		connections = 105000 // connections during a change of the table do not count
	}
	opened, strays := Drains(t, connections, openTCX)
	if strays != 0 || opened < int64(connections)/2 {
		t.Errorf("%d of %d new connections reached the instance that drained", strays, opened)
	}
	record(t, 0, "new during a drain", float64(opened))
	record(t, 0, "of them to who drained", float64(strays))
	t.Logf("%d of %d new connections reached the instance that drained", strays, opened)
}

// measuring reports whether bench/service/connections runs these tests with the figures of its
// goals. It then records the results in a file.
func measuring() bool { return os.Getenv("PANDO_RESULTS") != "" }

func record(t *testing.T, round int, series string, value float64) {
	t.Helper()
	if !measuring() {
		return
	}
	f, err := os.OpenFile(os.Getenv("PANDO_RESULTS"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%d,%s,%g\n", round, series, value); err != nil {
		t.Fatal(err)
	}
}

func TestFullTable(t *testing.T) {
	const flows, guarded = 512, 512
	Full(t, flows+guarded,
		func(t *testing.T, uplinks ...string) Subject { return openSize(t, flows, uplinks...) })
}

// A process with this variable runs publishUntilKilled from TestMain. The value is the links of a
// and b.
const publisher = "PANDO_TEST_PUBLISHER"

// publishUntilKilled sends every flow to a, then every flow to b, and so on.
func publishUntilKilled() {
	d, err := ebpf.Open(ebpf.Config{PinDir: pins, Uplinks: []string{"out"}, Buckets: balance.Buckets,
		FlowsMax: 1 << 16})
	if err != nil {
		panic(err)
	}
	var e [2]pando.Endpoint
	var links [2]pando.Link
	if err := json.Unmarshal([]byte(os.Getenv(publisher)), &links); err != nil {
		panic(err)
	}
	for n, name := range []string{"a", "b"} {
		e[n] = pando.Endpoint{Instance: pando.InstanceID(name), Link: links[n]}
	}
	for n := 0; ; n++ {
		if n == 1 { // a table of this publisher is in force from now on
			fmt.Println("publishing")
		}
		e[n%2].Weight, e[1-n%2].Weight = 100, 0
		t := pando.SteeringTable{
			Service: web, VIP4: vip[0], VIP6: vip[1], Ports: webPorts, Endpoints: e[:],
		}
		if n%3 == 2 { // one of them comes and goes
			t.Endpoints = e[n%2 : n%2+1]
		}
		if err := d.Publish(context.Background(), t); err != nil {
			panic(err)
		}
	}
}

// TestAPublisherThatIsKilled checks that a kill leaves one whole table, the old or the new. The
// next publisher continues from it.
func TestAPublisherThatIsKilled(t *testing.T) {
	s := newStand(t, openTCX, "a", "b")
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 0))
	port := uint16(1)
	for n := range 10 * times() {
		killPublisher(t, s.boxes["a"].Link, s.boxes["b"].Link)
		s.Subject = openTCX(t, "out")
		to := map[string]int{}
		for range 300 {
			port++
			p := tcp(netip.AddrPortFrom(far[0], port), netip.AddrPortFrom(vip[0], 80), "S")
			got, err := s.Try(Outside, s.outside.Link, p.Bytes(s.outside.Link.MAC, s.outside.Link.HostMAC),
				false)
			if err != nil {
				t.Fatal(err)
			}
			to[s.whose(got)]++
		}
		if len(to) != 1 || to["a"]+to["b"] != 300 {
			t.Fatalf("after kill %d: 300 new flows went to %v, want all to one", n, to)
		}
		s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
	}
}

// whose returns the instance that a packet was sent to.
func (s *stand) whose(o Outcome) string {
	for name, b := range s.boxes {
		if o.Fate == Sent && string(o.Frame[:6]) == string(b.Link.MAC) {
			return name
		}
	}
	return string(o.Fate)
}

func killPublisher(t *testing.T, links ...pando.Link) {
	t.Helper()
	given, err := json.Marshal(links)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), publisher+"="+string(given))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the publisher returns %q, %v", line, err)
	}
	<-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}
