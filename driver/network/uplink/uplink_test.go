package uplink

import (
	"math"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// clock shows a time of the test.
type clock struct{ at time.Time }

func (c *clock) Now() time.Time                                 { return c.at }
func (c *clock) After(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }

func TestTheTrafficOfADevice(t *testing.T) {
	before, _ := Traffic("lo")
	c, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if sent, received := Traffic("lo"); sent < before+1000 || received == 0 {
		t.Errorf("%d bytes were sent before, and %d with 1000 more; %d received", before, sent, received)
	}
	if sent, received := Traffic("gone"); sent != 0 || received != 0 {
		t.Errorf("a device that is gone has %d and %d bytes", sent, received)
	}
}

func TestTheBusiestDeviceCounts(t *testing.T) {
	type reading struct {
		bytes [2]float64
		speed float64
	}
	now := map[string]reading{"eth0": {speed: 125e6}, "eth1": {speed: 1250e6}, "bridge": {}}
	c := &clock{at: time.Unix(100, 0)}
	u := New([]string{"eth0", "eth1", "bridge", "gone"}, c)
	u.read = func(d string) ([2]float64, float64) { return now[d].bytes, now[d].speed }
	if got := u.Busiest(); got != 0 {
		t.Errorf("before the second reading: %g", got)
	}
	c.at = c.at.Add(time.Second)
	now["eth0"] = reading{[2]float64{25e6, 12.5e6}, 125e6} // a fifth of 125 MB/s
	now["eth1"] = reading{[2]float64{0, 125e6}, 1250e6}    // a tenth
	now["bridge"] = reading{[2]float64{1e11, 0}, 0}        // of unknown speed
	if got := u.Busiest(); math.Abs(got-0.2) > 1e-9 {
		t.Errorf("the busiest is %g, want 0.2", got)
	}
	c.at = c.at.Add(time.Millisecond)
	now["eth0"] = reading{[2]float64{1e9, 1e9}, 125e6}
	if got := u.Busiest(); math.Abs(got-0.2) > 1e-9 {
		t.Errorf("a millisecond later: %g", got)
	}
	c.at = c.at.Add(time.Second)
	if got := u.Busiest(); got != 1 {
		t.Errorf("more than its speed: %g", got)
	}
}

// A device of another network namespace than that of sysfs is measured, by its own speed.
func TestTheUseOfADeviceOfAnotherNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace is made by root")
	}
	runtime.LockOSThread() // for ever: the namespace ends with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"ip link add inside type veth peer name far",
		"ip addr add 192.0.2.1/24 dev inside", "ip link set far up", "ip link set inside up",
		"ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:01 dev inside"} {
		words := strings.Fields(command)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	if got := speedOf("inside"); got != 10e9/8 {
		t.Errorf("the speed of a veth is %g bytes a second, want 10 Gbit/s", got)
	}
	if got := speedOf("lo") + speedOf("gone") + speedOf(strings.Repeat("x", 99)); got != 0 {
		t.Errorf("devices without a speed have %g", got)
	}
	c := &clock{at: time.Unix(100, 0)}
	u := New([]string{"inside"}, c)
	u.Busiest()
	before, _ := Traffic("inside")
	to, err := net.Dial("udp", "192.0.2.9:9")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	for range 100 {
		if _, err := to.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	c.at = c.at.Add(100 * time.Millisecond)
	got := u.Busiest()
	sent, _ := Traffic("inside")
	low, high := 100*1042/125e6, float64(sent-before)/125e6
	if got < low-1e-9 || got > high+1e-9 {
		t.Errorf("the use is %g, want %g to %g", got, low, high)
	}
}
