package rig

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"pando.run/pando/lab"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("skipped: needs root")
		os.Exit(0)
	}
	Main(m)
}

// A load reaches the servers of its boxes, and the processor time of a server is seen.
func TestLoadIsServedAndCounted(t *testing.T) {
	t.Chdir(t.TempDir())
	box := func(name, ip string) *lab.Box {
		b, err := lab.NewBox(name, netip.MustParseAddr(ip), netip.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	client, server := box("rout", "192.0.2.1"), box("rweb", "10.128.0.2")
	p := Serve(t, server)
	to := func(int) netip.AddrPort { return netip.AddrPortFrom(server.Link.IP4, Port) }
	for _, short := range []bool{false, true} {
		before := p.CPU()
		took, err := Load{
			From: client, To: to, Bytes: 100_000, Short: short, Clients: 2, Lasts: 200 * time.Millisecond,
		}.Run()
		if err != nil || len(took) < 2 {
			t.Fatalf("short %v: %d requests, %v", short, len(took), err)
		}
		if p.CPU() <= before {
			t.Errorf("short %v: the server took no processor time", short)
		}
	}
	took, err := Load{
		From: client, To: to, Bytes: 10, Clients: 2, Lasts: 300 * time.Millisecond, Rate: 100,
	}.Run()
	if err != nil || len(took) < 10 || len(took) > 40 {
		t.Errorf("100 requests per second for 300 ms: %d, %v", len(took), err)
	}
	closed := func(int) netip.AddrPort { return netip.AddrPortFrom(server.Link.IP4, Port+1) }
	_, err = Load{From: client, To: closed, Bytes: 1, Clients: 1, Lasts: time.Second}.Run()
	if err == nil {
		t.Error("a closed port answers")
	}
}
