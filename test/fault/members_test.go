package fault

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd"
	"pando.run/pando/world"
)

// storeForMembers starts a store that listens for members of a cluster.
func storeForMembers(t *testing.T) (s *etcd.Server, at string, a *trust.Authority) {
	t.Helper()
	dir := t.TempDir()
	a, err := trust.OpenAuthority(filepath.Join(dir, "trust"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.Identity("", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := &etcd.Members{
		Listen: "127.0.0.1:0", TLS: server.Members("h2"), HostOf: trust.HostOf, Clock: clock.Clock{},
	}
	s, err = etcd.Start(t.Context(), etcd.ServerConfig{Dir: filepath.Join(dir, "store"), Members: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	write(t, s, pando.Member{Name: "h2", Slot: 2, Address: addressOf(2)})
	return s, "https://" + s.MembersAddress(), a
}

// write puts records into a store as control does.
func write(t *testing.T, s *etcd.Server, all ...pando.Stored) {
	t.Helper()
	if _, err := s.Registry().Commit(t.Context(), pando.Txn{Put: all}); err != nil {
		t.Fatal(err)
	}
}

func addressOf(slot int) netip.Addr { return netip.AddrFrom4([4]byte{10, 126, 0, byte(slot)}) }

// hostIn returns the record of a host that matches its membership.
func hostIn(slot int) pando.Host {
	h := pando.Host{
		Name: pando.HostName(fmt.Sprintf("h%d", slot)), Slot: slot, Address: addressOf(slot),
	}
	h.Instances4, h.Instances6 = pando.InstanceRange(slot)
	return h
}

// enter dials a store as a member and joins.
func enter(t *testing.T, at string, i *trust.Identity) (*etcd.Registry, pando.Fence) {
	t.Helper()
	r, err := etcd.Dial(t.Context(), at, i.ToServer())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	f, _, err := r.Join(t.Context(), hostIn(2), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return r, f
}

func member(t *testing.T, a *trust.Authority, h pando.HostName) *trust.Identity {
	t.Helper()
	i, err := a.Identity(h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return i
}

var web, vault = pando.DefaultService("web"), pando.ServiceKey{Tenant: "bank", Name: "vault"}

// placed writes decisions of control: web is at home on h2, vault on h1, and each has an instance
// there.
func placed(t *testing.T, s *etcd.Server) (mine, theirs pando.Instance) {
	t.Helper()
	mine = pando.Instance{
		ID: "web-1", Service: web, Host: "h2", Phase: pando.PhaseStarting, Revision: 1, Intent: "i1",
	}
	theirs = pando.Instance{ID: "vault-1", Service: vault, Host: "h1", Phase: pando.PhaseInRotation,
		Revision: 1, Intent: "i2"}
	write(t, s, mine, theirs, pando.Service{ServiceKey: web, Home: "h2"},
		pando.Service{ServiceKey: vault, Home: "h1"},
		pando.Intent{ID: "i1", Service: web, Verb: pando.VerbReplicate, Host: "h2", Instance: "web-1",
			State: pando.IntentPlaced},
		pando.Intent{ID: "i2", Service: vault, Verb: pando.VerbReplicate, Host: "h1", Instance: "vault-1",
			State: pando.IntentPlaced},
		pando.StateHead{Service: vault, Host: "h1", Commit: pando.ObjectID{1}})
	return mine, theirs
}

func asks(id pando.IntentID, s pando.ServiceKey, by pando.InstanceID) pando.Intent {
	return pando.Intent{
		ID: id, Service: s, Verb: pando.VerbHalt, Host: "h2", Instance: by, State: pando.IntentAsked,
		By: pando.Asker{Kind: pando.AskerInstance, Name: string(by)},
	}
}

func TestAMemberWritesItsOwnRecordsOnly(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	mine, theirs := placed(t, s)
	r, f := enter(t, at, member(t, a, "h2"))
	ready := mine
	ready.Phase = pando.PhaseReady
	of := pando.Asker{Kind: pando.AskerControl, Name: "agent h2"}
	for _, own := range []pando.Stored{
		ready, hostIn(2), asks("i3", web, "web-1"),
		pando.Decision{ID: "d1", Service: web, Instance: "web-1", Kind: pando.DecidedFailed, By: of},
		pando.Intent{ID: "i1", Service: web, Verb: pando.VerbReplicate, Host: "h2", Instance: "web-1",
			State: pando.IntentReady},
		pando.StateHead{Service: web, Host: "h2"}, pando.StateHead{Service: web, Host: "h2", Merges: 1},
	} {
		if _, err := r.Commit(t.Context(), pando.Txn{Fence: f, Put: []pando.Stored{own}}); err != nil {
			t.Errorf("%s: %v", own.Key(), err)
		}
	}
	for what, put := range foreign(mine, theirs, of) {
		if _, err := r.Commit(t.Context(), pando.Txn{Fence: f, Put: []pando.Stored{put}}); !errors.Is(err,
			pando.ErrForbidden) {
			t.Errorf("h2 wrote %s: %v", what, err)
		}
	}
	for _, k := range []pando.Key{theirs.Key(), web.Key(), pando.HeadKey(web),
		asks("i3", web, "").Key(), pando.MemberKey("h1")} {
		if _, err := r.Commit(t.Context(), pando.Txn{Fence: f, Delete: []pando.Key{k}}); !errors.Is(err,
			pando.ErrForbidden) {
			t.Errorf("h2 deleted %s: %v", k, err)
		}
	}
	if _, err := r.Commit(t.Context(), pando.Txn{Put: []pando.Stored{mine}}); !errors.Is(err,
		pando.ErrForbidden) {
		t.Errorf("h2 wrote without its fence: %v", err)
	}
	if _, _, err := r.Join(t.Context(), pando.Host{Name: "h1"}, 5*time.Second); !errors.Is(err,
		pando.ErrForbidden) {
		t.Errorf("h2 joined as h1: %v", err)
	}
	if _, _, err := r.Lead(t.Context(), "control", "h2"); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("h2 leads: %v", err)
	}
	if _, err := r.Commit(t.Context(),
		pando.Txn{Fence: f, Delete: []pando.Key{mine.Key()}}); err != nil {
		t.Errorf("h2 cannot bury its own instance: %v", err)
	}
}

// foreign returns records that host h2 may not write, by the reason.
func foreign(mine, theirs pando.Instance, of pando.Asker) map[string]pando.Stored {
	on1, bogus, newer, far, new1 := theirs, mine, mine, mine, mine
	on1.Phase, bogus.Phase, newer.Revision, far.IP4 = pando.PhaseDead, "bogus", 2,
		netip.MustParseAddr("10.128.16.9")
	new1.ID = "web-2"
	taken := hostIn(2)
	taken.Address = addressOf(1)
	everywhere := hostIn(2)
	everywhere.Instances4 = netip.MustParsePrefix("8.8.0.0/16")
	huge := asks("i9", web, "web-1")
	huge.Reason = strings.Repeat("x", 200<<10)
	answer := asks("i3", web, "web-1")
	answer.State = pando.IntentGranted
	restores, knocks := asks("i10", web, "web-1"), asks("i11", web, "web-1")
	restores.Verb, restores.From = pando.VerbReplicate, "sha256:0123"
	knocks.Verb, knocks.From = pando.VerbReplicate, "sha256:0123"
	knocks.By = pando.Asker{Kind: pando.AskerTraffic, Name: "h2"}
	about := func(id string, kind pando.DecisionKind) pando.Decision {
		return pando.Decision{ID: id, Service: web, Instance: "web-1", Kind: kind, By: of}
	}
	begun := pando.Intent{ID: "i1", Service: web, Verb: pando.VerbReplicate, Host: "h2",
		Instance: "web-1", State: pando.IntentReady, From: "sha256:0123"}
	return map[string]pando.Stored{
		"an answer to its own ask":                answer,
		"another host's instance":                 on1,
		"an instance that control has not placed": new1,
		"an invalid phase":                        bogus,
		"another revision":                        newer,
		"an address of another host":              far,
		"another host's address":                  taken,
		"foreign prefixes":                        everywhere,
		"another slot":                            pando.Host{Name: "h2", Slot: 1, Address: addressOf(2)},
		"a service":                               pando.Service{ServiceKey: web},
		"a revision":                              pando.Revision{Service: web, Number: 1},
		"a member":                                pando.Member{Name: "h2", Slot: 0},
		"an ask of another host's instance":       asks("i4", vault, "vault-1"),
		"an ask about one":                        asks("i5", web, "vault-1"),
		"an intent about another host": pando.Intent{ID: "i2", Service: vault, Verb: pando.VerbReplicate,
			Host: "h1", Instance: "vault-1"},
		"an operator's intent": pando.Intent{ID: "i6", Service: web, Verb: pando.VerbHalt,
			Host: "h2", State: pando.IntentAsked},
		"a decision about another host": pando.Decision{ID: "d2", Service: vault, Instance: "vault-1",
			By: of},
		"a decision of control": pando.Decision{ID: "d3", Service: web, Instance: "web-1",
			Kind: pando.DecidedFailed, By: pando.Asker{Kind: pando.AskerControl}},
		"a deploy":                        about("d4", pando.DecidedDeploy),
		"a command":                       about("d5", pando.DecidedExec),
		"a decision of no kind":           about("d6", ""),
		"another kind below its decision": about("d1", pando.DecidedSnapshot),
		"an ask for a snapshot":           restores,
		"a knock for a snapshot":          knocks,
		"a snapshot into an intent":       begun,
		"the head of another service":     pando.StateHead{Service: vault, Host: "h2", Merges: 99},
		"a head elsewhere":                pando.StateHead{Service: web, Host: "h1"}, "a large value": huge,
	}
}

// etcdAs returns a plain etcd client with the certificate of a member.
func etcdAs(t *testing.T, at string, i *trust.Identity) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{at}, TLS: i.ToServer(), Logger: zap.NewNop(), DialTimeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The value of a record shows the writer's intention; only its key shows the writer's permission.
func TestAMemberWritesNoForeignValueBelowItsOwnKey(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	_, theirs := placed(t, s)
	i := member(t, a, "h2")
	_, f := enter(t, at, i)
	c := etcdAs(t, at, i)
	dead := theirs
	dead.Phase = pando.PhaseDead
	for what, w := range map[string]struct {
		k pando.Key
		v any
	}{
		"end an instance elsewhere":   {"/pando/instance/bank/vault/h2/vault-1", dead},
		"start an instance elsewhere": {"/pando/instance/default/web/h2/web-1", theirs},
		"be another host":             {pando.HostKey("h2"), hostIn(1)},
		"ask for others":              {"/pando/intent/default/web/i7", asks("i7", vault, "web-1")},
		"move another state":          {pando.HeadKey(web), pando.StateHead{Service: vault, Host: "h2"}},
	} {
		text, err := world.Encode(w.v)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Txn(t.Context()).If(clientv3.Compare(clientv3.CreateRevision(string(f.Key)), "=",
			int64(f.Created))).
			Then(clientv3.OpPut(string(w.k), string(text))).Commit()
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestTheLeasesOfAMemberAreItsOwnFewAndShort(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	i := member(t, a, "h2")
	_, f := enter(t, at, i)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, _, err := s.Registry().Join(ctx, hostIn(1), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	c := etcdAs(t, at, i)
	got, err := c.Get(ctx, string(pando.HostKey("h1")))
	if err != nil || len(got.Kvs) != 1 {
		t.Fatal(err)
	}
	theirs := clientv3.LeaseID(got.Kvs[0].Lease)
	if _, err := etcdAs(t, at, i).KeepAliveOnce(ctx,
		theirs); status.Code(err) != codes.PermissionDenied {
		t.Errorf("h2 keeps the lease of h1 alive: %v", err)
	}
	if _, err := c.Revoke(ctx, theirs); status.Code(err) != codes.PermissionDenied {
		t.Errorf("h2 ends the lease of h1: %v", err)
	}
	text, err := world.Encode(hostIn(2))
	if err != nil {
		t.Fatal(err)
	}
	for what, lease := range map[string]clientv3.LeaseID{
		"the lease of h1": theirs, "no lease": clientv3.NoLease,
	} {
		_, err = c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(string(f.Key)), "=",
			int64(f.Created))).
			Then(clientv3.OpPut(string(pando.HostKey("h2")), string(text), clientv3.WithLease(lease))).
			Commit()
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("h2 lives under %s: %v", what, err)
		}
	}
	if _, err := c.Grant(ctx, 3600); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a lease of an hour: %v", err)
	}
	most := 0
	var last clientv3.LeaseID
	for ; most < 100; most++ {
		g, err := c.Grant(ctx, 60)
		if err != nil {
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("lease %d: %v", most, err)
			}
			break
		}
		last = g.ID
	}
	if most < 8 || most > 64 {
		t.Errorf("h2 took %d leases", most)
	}
	if _, err := c.Revoke(ctx, last); err != nil {
		t.Errorf("h2 ends its own lease: %v", err)
	}
	if _, err := c.Grant(ctx, 60); err != nil {
		t.Errorf("a lease in place of one that has ended: %v", err)
	}
}

// A certificate is valid for a year; a membership ends when its record is deleted.
func TestAHostWithoutAMemberRecordIsOut(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	i := member(t, a, "h2")
	r, f := enter(t, at, i)
	w := r.Watch(t.Context(), pando.KindService.Under(), 0)
	write(t, s, pando.Service{ServiceKey: web})
	if b := <-w; b.Err != nil {
		t.Fatal(b.Err)
	}
	if _, err := s.Registry().Commit(t.Context(),
		pando.Txn{Delete: []pando.Key{pando.MemberKey("h2")}}); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(10 * time.Second)
	for open := true; open; { // the stream that it had ends by itself
		select {
		case b, more := <-w:
			open = more && !errors.Is(b.Err, pando.ErrForbidden)
		case <-deadline:
			t.Fatal("a host that was removed still follows the store")
		}
	}
	services := pando.KindService.Under()
	if _, err := r.Snapshot(t.Context(), services); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("it reads: %v", err)
	}
	if _, err := r.Commit(t.Context(), pando.Txn{Fence: f,
		Put: []pando.Stored{asks("i1", web, "web-1")}}); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("it writes: %v", err)
	}
	// The host joins again.
	write(t, s, pando.Member{Name: "h2", Slot: 2, Address: addressOf(2), PublicKey: i.PublicKey()})
	again, err := etcd.Dial(t.Context(), at, i.ToServer())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Snapshot(t.Context(), services); err != nil {
		t.Errorf("its own key: %v", err)
	}
	other, err := etcd.Dial(t.Context(), at, member(t, a, "h2").ToServer())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Snapshot(t.Context(), services); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a former key of the same name: %v", err)
	}
}

func TestMembersSpeakTheNewestTLSAndStrangersAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	s, at, a := storeForMembers(t)
	old := member(t, a, "h2").ToServer()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if c, err := tls.Dial("tcp", s.MembersAddress(), old); err == nil {
		c.Close()
		t.Errorf("%s speaks TLS 1.2", at)
	}
	silent, err := net.Dial("tcp", s.MembersAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if err := silent.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a silent connection stays: %v", err)
	}
}

// etcdCalls returns calls of etcd's own services that change or copy the store.
func etcdCalls(c *clientv3.Client) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"put": func(ctx context.Context) error {
			_, err := c.Put(ctx, "/pando/service/default/web", "{}")
			return err
		},
		"delete": func(ctx context.Context) error {
			_, err := c.Delete(ctx, "", clientv3.WithFromKey())
			return err
		},
		"compact": func(ctx context.Context) error { _, err := c.Compact(ctx, 1); return err },
		"revoke":  func(ctx context.Context) error { _, err := c.Revoke(ctx, 1); return err },
		"members": func(ctx context.Context) error {
			_, err := c.MemberAdd(ctx, []string{"http://127.0.0.1:1"})
			return err
		},
		"users": func(ctx context.Context) error { _, err := c.AuthDisable(ctx); return err },
		"alarms": func(ctx context.Context) error {
			_, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{})
			return err
		},
		"snapshot": func(ctx context.Context) error {
			s, err := c.Snapshot(ctx)
			if err == nil {
				_, err = s.Read(make([]byte, 1))
			}
			return err
		},
	}
}

func TestTheStoreIsOpenToMembersOnlyAndForNothingElse(t *testing.T) {
	t.Parallel()
	_, at, a := storeForMembers(t)
	stranger, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	alien := member(t, stranger, "h2").ToServer()
	alien.VerifyConnection = nil // otherwise the client itself would reject this server
	none := member(t, a, "h2").ToServer()
	none.GetClientCertificate = nil
	read := func(r *etcd.Registry) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Snapshot(ctx, pando.Root)
		return err
	}
	for name, identity := range map[string]bool{
		"another cluster's certificate": true, "no certificate": false,
	} {
		with := none
		if identity {
			with = alien
		}
		r, err := etcd.Dial(t.Context(), at, with)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := read(r); !errors.Is(err, pando.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A member's certificate gives no access to etcd's own services, with any client.
	c := etcdAs(t, at, member(t, a, "h2"))
	for name, ask := range etcdCalls(c) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := ask(ctx); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}
