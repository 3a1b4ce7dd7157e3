package daemon

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd"
)

// serverList makes a list: a name in capitals is silent, one with a dot has no vote.
func serverList(names ...string) (all []server) {
	for _, n := range names {
		plain := strings.ToLower(strings.TrimSuffix(n, "."))
		all = append(all, server{Answers: plain == strings.TrimSuffix(n, "."),
			Peer: etcd.Peer{Name: plain, Learner: strings.HasSuffix(n, ".")}})
	}
	return all
}

func TestTheEndOfAServerIsCounted(t *testing.T) {
	for _, c := range []struct {
		all  []server
		says string
		want error
	}{
		{serverList("a", "b", "c"), "2 of 3 servers stay and decide; no other server may end", nil},
		{serverList("a", "b", "c", "d", "e"), "4 of 5 servers stay and decide; 1 more server may end",
			nil},
		{serverList("a", "b", "C"), "start c first", pando.ErrRefused},
		{serverList("a", "b"), "`pando servers rm a`", pando.ErrRefused},
		{serverList("a", "b", "c."), "1 of 2 servers would stay, and decisions need 2",
			pando.ErrRefused},
		{serverList("a.", "b", "c"), "", nil}, // it has no vote
	} {
		text, err := afterEnd(c.all, "a")
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%v: %v, want %v", c.all, err, c.want)
		}
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, c.says) {
			t.Errorf("%v: %q, want %q", c.all, text, c.says)
		}
	}
}

// The first server's host has no membership. It gets one when its server is taken out, and without
// another server it keeps everything.
func TestTheFirstHostBecomesAMember(t *testing.T) {
	dir := t.TempDir()
	p := place{folders: folders{Data: dir}, Host: "host1"}
	if _, err := trust.OpenAuthority(p.trust(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := becomeMember(p); !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("without another server: %v", err)
	}
	if m, err := trust.LoadMembership(p.trust()); m != nil || err != nil {
		t.Errorf("it has a membership: %+v, %v", m, err)
	}
	k := openKnown(p, nil, true, slog.New(slog.DiscardHandler))
	members := map[pando.HostName]pando.Member{}
	for n, h := range []pando.HostName{"host1", "host2"} {
		at := netip.AddrFrom4([4]byte{10, 126, 0, byte(n + 1)})
		members[h] = pando.Member{Name: h, Address: at, Server: true}
	}
	k.learn(members)
	select {
	case <-k.demoted:
		t.Fatal("a server counts as taken out")
	default:
	}
	if err := becomeMember(p); err != nil {
		t.Fatal(err)
	}
	if err := p.writeSeveral(several{Left: true}); err != nil { // and then it was killed
		t.Fatal(err)
	}
	store := p.Data + "/store"
	if err := os.Mkdir(store, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if serves, err := p.isServer(); serves || err != nil {
			t.Errorf("a server that left would start: %v, %v", serves, err)
		}
		if err := haveLeft(p); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{store, p.severalFile(), p.trust() + "/authority.pem"} {
		if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s stays: %v", gone, err)
		}
	}
	m, err := trust.LoadMembership(p.trust())
	if err != nil || m.Host != "host1" || m.Server != "10.126.0.2:7401" ||
		m.Store != "https://10.126.0.2:7402" || len(m.Probes) == 0 {
		t.Fatalf("the membership is %+v, %v", m, err)
	}
	if m.Identity.Ends().Before(time.Now()) {
		t.Errorf("its certificate has ended at %s", m.Identity.Ends())
	}
	members["host1"] = pando.Member{Name: "host1", Address: members["host1"].Address}
	k.learn(members)
	k.learn(members)
	select {
	case <-k.demoted:
	default:
		t.Error("it does not notice that its server was taken out")
	}
}
