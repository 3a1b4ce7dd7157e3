package uplink

import (
	"math"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// clock shows a time of the test.
type clock struct{ at time.Time }

func (c *clock) Now() time.Time                                 { return c.at }
func (c *clock) After(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }

// device writes the files of a device with its speed in Mbit/s.
func device(t *testing.T, root, name, speed, received, sent string) {
	t.Helper()
	dir := filepath.Join(root, name, "statistics")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"../speed": speed, "rx_bytes": received, "tx_bytes": sent,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

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
	root, c := t.TempDir(), &clock{at: time.Unix(100, 0)}
	u := New(root, []string{"eth0", "eth1", "veth0", "gone"}, c)
	device(t, root, "eth0", "1000", "0", "0")
	device(t, root, "eth1", "10000", "0", "0")
	device(t, root, "veth0", "-1", "0", "0")
	if got := u.Busiest(); got != 0 {
		t.Errorf("before the second reading: %g", got)
	}
	c.at = c.at.Add(time.Second)
	device(t, root, "eth0", "1000", "12500000", "25000000") // a fifth of 125 MB/s
	device(t, root, "eth1", "10000", "125000000", "0")      // a tenth
	device(t, root, "veth0", "-1", "99999999999", "0")      // of unknown speed
	if got := u.Busiest(); math.Abs(got-0.2) > 1e-9 {
		t.Errorf("the busiest is %g, want 0.2", got)
	}
	c.at = c.at.Add(time.Millisecond)
	device(t, root, "eth0", "1000", "999999999", "999999999")
	if got := u.Busiest(); math.Abs(got-0.2) > 1e-9 {
		t.Errorf("a millisecond later: %g", got)
	}
	c.at = c.at.Add(time.Second)
	if got := u.Busiest(); got != 1 {
		t.Errorf("more than its speed: %g", got)
	}
}
