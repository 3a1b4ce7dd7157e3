package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd"
	"pando.run/pando/world"
)

// cluster1 returns the server's side of a cluster of one host, on a real store.
func cluster1(t *testing.T) admission {
	t.Helper()
	dir, err := os.MkdirTemp("", "pt") // short, because a socket path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: filepath.Join(dir, "store"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	a, err := trust.OpenAuthority(filepath.Join(dir, "trust"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ctl := control.New(control.Config{
		Registry: s.Registry(), Clock: clock.Clock{}, IDs: names{}, Log: log, Name: "host1",
	})
	if _, err := ctl.Admit(t.Context(), pando.Member{Name: "host1",
		Address: netip.MustParseAddr("10.126.0.1"), Server: true}, false, nil); err != nil {
		t.Fatal(err)
	}
	return admission{place{Listen: "10.126.0.1"}, ctl, a}
}

// candidate is a host that wants to join.
type candidate struct {
	testing.TB
	*trust.Identity
	peer.Joining
}

func (a admission) candidate(t *testing.T, h pando.HostName, token string) candidate {
	t.Helper()
	i, err := trust.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := i.Request()
	if err != nil {
		t.Fatal(err)
	}
	return candidate{t, i, peer.Joining{
		Token: token, From: netip.MustParseAddr("10.126.0.2"), Host: h, Address: "10.126.0.2",
		Layout: world.CurrentLayout(), Request: request,
	}}
}

func (c candidate) certificate(got peer.Joined) *x509.Certificate {
	c.Helper()
	x, err := x509.ParseCertificate(got.Certificate)
	if err != nil {
		c.Fatal(err)
	}
	return x
}

func (a admission) slots(t *testing.T) map[pando.HostName]int {
	t.Helper()
	all, err := a.control.Registry.Snapshot(t.Context(), membersPrefix)
	if err != nil {
		t.Fatal(err)
	}
	out := map[pando.HostName]int{}
	for _, r := range all.Records {
		var m pando.Member
		if err := world.Decode(r, &m); err != nil {
			t.Fatal(err)
		}
		out[m.Name] = m.Slot
	}
	return out
}

func TestABadRequestToJoinCostsNothing(t *testing.T) {
	a := cluster1(t)
	token, err := a.authority.Token(time.Now().Add(time.Hour), 1)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		change func(*peer.Joining)
		want   error
	}{
		"no certificate request": {func(j *peer.Joining) { j.Request = []byte("AAAA") },
			pando.ErrInvalid},
		"a clock that is an hour late": {func(j *peer.Joining) { j.Now = time.Now().Add(-time.Hour) },
			pando.ErrInvalid},
		"a clock that is an hour early": {func(j *peer.Joining) { j.Now = time.Now().Add(time.Hour) },
			pando.ErrInvalid},
		"the address of another": {func(j *peer.Joining) { j.Address = "10.126.0.1" },
			pando.ErrInvalid},
		"the loopback": {func(j *peer.Joining) {
			j.Address, j.From = "127.0.0.1", netip.MustParseAddr("127.0.0.1")
		}, pando.ErrInvalid},
		"no address": {func(j *peer.Joining) { j.Address = "" }, pando.ErrInvalid},
		"an IPv4 address as IPv6": {func(j *peer.Joining) { j.Address6 = "10.126.0.2" },
			pando.ErrInvalid},
		"an older layout":          {func(j *peer.Joining) { j.Layout-- }, pando.ErrInvalid},
		"an invalid name":          {func(j *peer.Joining) { j.Host = "../x" }, pando.ErrInvalid},
		"the name of the server's": {func(j *peer.Joining) { j.Host = "host1" }, pando.ErrExists},
	} {
		j := a.candidate(t, "host2", token).Joining
		c.change(&j)
		if _, err := a.join(t.Context(), j, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s := a.slots(t); len(s) != 1 {
		t.Errorf("the members are %v", s)
	}
	fine := a.candidate(t, "host2", token).Joining
	fine.Now = time.Now().Add(time.Minute)
	if got, err := a.join(t.Context(), fine, nil); err != nil || got.Slot != 1 {
		t.Errorf("the token and slot 1 were used up: slot %d, %v", got.Slot, err)
	}
}

func TestANameIsOfOneKeyUntilTheHostIsRemoved(t *testing.T) {
	a := cluster1(t)
	token, err := a.authority.Token(time.Now().Add(time.Hour), 3)
	if err != nil {
		t.Fatal(err)
	}
	first := a.candidate(t, "host2", token)
	got, err := a.join(t.Context(), first.Joining, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The host did not receive the answer and asks again. That does not use the token a second time.
	for range 5 {
		if again, err := a.join(t.Context(), first.Joining, nil); err != nil || again.Slot != got.Slot {
			t.Fatalf("again: slot %d, %v", again.Slot, err)
		}
	}
	other := a.candidate(t, "host2", token)
	if _, err := a.join(t.Context(), other.Joining, nil); !errors.Is(err, pando.ErrExists) ||
		!strings.Contains(err.Error(), "pando hosts rm host2") {
		t.Errorf("another key takes the name: %v", err)
	}
	shown := first.certificate(got)
	if _, err := a.join(t.Context(), first.Joining, shown); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	if _, err := a.join(t.Context(), other.Joining, shown); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a renewal for another key: %v", err)
	}
	a.refusesACopy(t, first, shown)
	by := pando.Asker{Kind: pando.AskerOperator}
	web := pando.DefaultService("web")
	left := []pando.Stored{
		pando.Instance{ID: "web-1", Service: web, Host: "host2", Phase: pando.PhaseReady},
		pando.StateHead{Service: web, Host: "host2"}, pando.Service{ServiceKey: web},
	}
	if _, err := a.control.Registry.Commit(t.Context(), pando.Txn{Put: left}); err != nil {
		t.Fatal(err)
	}
	if err := a.control.RemoveHost(t.Context(), "host2", false, by); !errors.Is(err, pando.ErrRefused) ||
		!strings.Contains(err.Error(), "states of 1 services") {
		t.Errorf("a host that keeps a state: %v", err)
	}
	if err := a.control.RemoveHost(t.Context(), "host1", true, by); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("the server's own host: %v", err)
	}
	if err := a.control.RemoveHost(t.Context(), "host2", true, by); err != nil {
		t.Fatal(err)
	}
	if err := a.control.RemoveHost(t.Context(), "host2", true, by); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("an unknown host: %v", err)
	}
	if s, err := a.control.Registry.Snapshot(t.Context(), left[0].Key()); err != nil || len(s.Records) != 0 {
		t.Errorf("its instance is still there (%v)", err)
	}
	if _, err := a.join(t.Context(), first.Joining, shown); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a renewal by a host that was removed: %v", err)
	}
	if got, err := a.join(t.Context(), other.Joining, nil); err != nil || got.Slot != 2 {
		t.Errorf("the name is not free, or the slot does not rest: slot %d, %v", got.Slot, err)
	}
}

// refusesACopy checks that a second machine with the files of a member is refused while the member
// is here, and that a member that really moved is not.
func (a admission) refusesACopy(t *testing.T, first candidate, shown *x509.Certificate) {
	t.Helper()
	copied := first.Joining
	copied.Address, copied.From = "10.126.0.77", netip.MustParseAddr("10.126.0.77")
	ctx, leave := context.WithCancel(t.Context())
	h := pando.Host{Name: "host2", Slot: 1, Address: netip.MustParseAddr("10.126.0.2")}
	_, lost, err := a.control.Registry.Join(ctx, h, pando.HostLease)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.join(t.Context(), copied, shown); !errors.Is(err, pando.ErrExists) ||
		!strings.Contains(err.Error(), "host2 is here at 10.126.0.2") {
		t.Errorf("a copy while the host is here: %v", err)
	}
	if _, err := a.join(t.Context(), first.Joining, shown); err != nil {
		t.Errorf("the host itself: %v", err)
	}
	leave()
	<-lost
	if _, err := a.control.Registry.Commit(t.Context(), pando.Txn{Delete: []pando.Key{h.Key(),
		pando.LeaderKey("host-host2")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.join(t.Context(), copied, shown); err != nil {
		t.Errorf("a host that has moved: %v", err)
	}
	if _, err := a.join(t.Context(), first.Joining, shown); err != nil {
		t.Errorf("back again: %v", err)
	}
}

// Two servers admit hosts at the same moment, by one token. Each slot is given once, and the token
// admits as many hosts as it allows.
// A right lasts through renewals, and a new host of the same name does not inherit it.
func TestARightIsAPartOfTheMembership(t *testing.T) {
	a := cluster1(t)
	token, err := a.authority.Token(time.Now().Add(time.Hour), 2)
	if err != nil {
		t.Fatal(err)
	}
	by := pando.Asker{Kind: pando.AskerOperator, Name: "anna"}
	first := a.candidate(t, "host2", token)
	got, err := a.join(t.Context(), first.Joining, nil)
	if err != nil {
		t.Fatal(err)
	}
	set := func(h pando.HostName, r pando.Right, may bool, want error) {
		t.Helper()
		if err := a.control.SetRight(t.Context(), h, r, may, by); !errors.Is(err, want) {
			t.Errorf("%s, %s: %v, want %v", h, r, err, want)
		}
	}
	has := func(want ...pando.Right) {
		t.Helper()
		m, err := readMember(t.Context(), a.control.Registry, "host2")
		for _, r := range pando.Rights {
			if err != nil || m.Has(r) != slices.Contains(want, r) {
				t.Errorf("it has %+v (%v), want %v", m.Rights, err, want)
			}
		}
	}
	has()
	set("host2", pando.RightDeploy, true, nil)
	set("host2", pando.RightAdmit, true, nil)
	set("host2", pando.RightAdmit, true, nil)
	set("host1", pando.RightDeploy, false, pando.ErrRefused)
	set("host3", pando.RightDeploy, true, pando.ErrNotFound)
	set("host2", "root", true, pando.ErrInvalid)
	has(pando.RightDeploy, pando.RightAdmit)
	if _, err := a.join(t.Context(), first.Joining, first.certificate(got)); err != nil {
		t.Fatal(err)
	}
	has(pando.RightDeploy, pando.RightAdmit)
	set("host2", pando.RightAdmit, false, nil)
	has(pando.RightDeploy)
	if err := a.control.RemoveHost(t.Context(), "host2", true, by); err != nil {
		t.Fatal(err)
	}
	if _, err := a.join(t.Context(), a.candidate(t, "host2", token).Joining, nil); err != nil {
		t.Fatal(err)
	}
	has()
}

func TestTwoServersGiveNoSlotAndNoUseTwice(t *testing.T) {
	a := cluster1(t)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	b := a
	b.control = control.New(control.Config{
		Registry: a.control.Registry, Clock: clock.Clock{}, IDs: names{}, Log: log, Name: "host9",
	})
	const allowed, asking = 6, 12
	token, err := a.authority.Token(time.Now().Add(time.Hour), allowed)
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan error, asking)
	begin := make(chan struct{})
	for n := range asking {
		at := []admission{a, b}[n%2]
		c := at.candidate(t, pando.HostName("new"+string(rune('a'+n))), token)
		go func() {
			<-begin
			for {
				_, err := at.join(t.Context(), c.Joining, nil)
				if !errors.Is(err, pando.ErrConflict) { // the host tries again
					answers <- err
					return
				}
			}
		}()
	}
	close(begin)
	admitted := 0
	for range asking {
		switch err := <-answers; {
		case err == nil:
			admitted++
		case !errors.Is(err, pando.ErrForbidden):
			t.Error(err)
		}
	}
	if admitted != allowed {
		t.Errorf("%d hosts were admitted by a token for %d", admitted, allowed)
	}
	of := map[int]pando.HostName{}
	for h, slot := range a.slots(t) {
		if other, taken := of[slot]; taken {
			t.Errorf("%s and %s have slot %d", h, other, slot)
		}
		of[slot] = h
	}
	if len(of) != 1+allowed {
		t.Errorf("the slots are %v", of)
	}
}
