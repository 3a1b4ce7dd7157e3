package process

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
)

// The log has the numbers of late packets, and of packets beyond the room.
func TestLostPacketsOfAStoppedProgramAreCounted(t *testing.T) {
	d := newDriver(t, 1)
	var log bytes.Buffer
	d.Log = slog.New(slog.NewTextHandler(&log, nil))
	b := run(t, d, nil, "sleep", "inf").(*sandbox)
	if err := b.watchPackets(); err != nil {
		t.Fatal(err)
	}
	knock(t, b.Link(), 1)
	if n := len(b.Packets()); n != 1 {
		t.Errorf("%d packets came, want 1", n)
	}
	knock(t, b.Link(), 2)
	if log.Len() > 0 {
		t.Errorf("before a packet was lost: %s", &log)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	said := log.String()
	if !strings.Contains(said, "late packets") || !strings.Contains(said, "packets=2") {
		t.Errorf("two packets came late: %s", &log)
	}

	log.Reset()
	b = run(t, d, nil, "sleep", "inf").(*sandbox)
	err := netspace.At(b.slot.netns(), func() (err error) {
		b.tap, err = openTap("eth0", 1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	knock(t, b.Link(), 20)
	kept := len(b.Packets())
	if kept >= 20 || !strings.Contains(log.String(), "exceed their room") {
		t.Errorf("%d of 20 packets had room: %s", kept, &log)
	}
}

// knock connects to a closed port. Each refusal proves that one packet has arrived.
func knock(t *testing.T, l pando.Link, n int) {
	t.Helper()
	for range n {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(l.IP4.String(), "9"), time.Minute)
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("a connection to a closed port: %v", err)
		}
	}
}
