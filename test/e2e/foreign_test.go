package e2e

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/store/etcd/etcdtest"
	"pando.run/pando/lab/labtest"
)

// etcdOf prepares an etcd of others on the client of a lab.
func etcdOf(p *labtest.Pando) *etcdtest.Etcd {
	p.Helper()
	dir := filepath.Join(p.Dir, "theirs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		p.Fatal(err)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr(p.Lab.Client.IPv4), 2379)
	return etcdtest.New(p, time.Now(), etcdtest.Program(p), dir, at)
}

// Two servers use an etcd that runs without Pando. One of them dies, and asks are answered. The
// other one is taken out, and its host stays a member.
func TestTwoServersUseAForeignEtcd(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, Idle: true, Flags: []string{"--pool", "1"}})
	e := etcdOf(p)
	first, second := p.Hosts[0], p.Hosts[1]
	said := p.UpFails(8, first, e.Flags()...)
	if !strings.Contains(said, "no etcd answers at "+e.Endpoint) {
		t.Errorf("without an etcd, pando up printed:\n%s", said)
	}
	p.Start(labtest.Client, e.Argv...).AwaitText("ready to serve client requests")
	p.Up(first, e.Flags()...)
	web := p.Deploy(labtest.Echo("web", "scale: {min: 1, max: 9}"))
	web.AwaitInstances(1)
	server := func() []string {
		var is struct{ Join, Token string }
		if err := json.Unmarshal([]byte(p.Pando("servers", "add", "-o", "json")), &is); err != nil {
			t.Fatal(err)
		}
		return []string{"--server", "--join", is.Join, "--token", is.Token}
	}
	said = p.UpFails(3, second, server()...)
	if !strings.Contains(said, "give --store") {
		t.Errorf("without --store, pando up --server printed:\n%s", said)
	}
	p.Up(second, append(server(), e.Flags()...)...)
	held := web.Hold(labtest.Client)
	p.KillServer(first)
	asksGoOn(p, web)
	list := p.Must(second, p.Bin, "servers", "ls")
	if !strings.Contains(list, "silent") || !strings.Contains(list, second) {
		t.Errorf("pando servers ls printed:\n%s", list)
	}
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("a connection was broken: %s", out.Text)
	}
	p.Up(first) // the endpoints are in its data folder
	p.Pando("servers", "rm", second)
	p.Await("the end of the server of "+second, func() (string, bool) {
		out := p.Run(second, p.Bin, "servers", "ls")
		return out.Text, out.Code == 8
	})
	p.Await("commands on "+second, func() (string, bool) {
		out := p.Run(second, p.Bin, "status")
		return out.Text, out.Code == 0
	})
	awaitState(p, second, pando.HostHere)
}
