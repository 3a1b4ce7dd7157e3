package etcd

import (
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/access"
)

// A read within one scope passes, in every form of a range. A read across scopes is refused.
func TestAReadIsWithinOneScope(t *testing.T) {
	web := pando.DefaultService("web")
	prefix := func(k pando.Key) (string, string) {
		return string(k), clientv3.GetPrefixRangeEnd(string(k))
	}
	for _, c := range []struct {
		key pando.Key
		end string // "*": all below the key
		ok  bool
		of  pando.ServiceKey
	}{
		{key: pando.KindEndpoints.Under(), end: "*", ok: true},
		{key: pando.KindKeeper.Under(), end: "*", ok: true},
		{key: "/pando/leader", end: "*", ok: true}, // as world.Follow asks
		{key: pando.ClusterKey, end: "*", ok: true},
		{key: pando.MemberKey("h3"), ok: true},
		{key: pando.InstancesOn(web, "h2"), end: "*", ok: true},
		{key: pando.InstancesOn(web, "h2") + "web-1", ok: true},
		{key: pando.RevisionsOf(web), end: "*", ok: true, of: web},
		{key: pando.RevisionKey(web, 3), ok: true, of: web},
		{key: pando.Intent{Service: web}.Key(), end: "*", ok: true, of: web},
		{key: pando.Intent{Service: web, ID: "i1"}.Key(), end: "*", ok: true, of: web},

		{key: pando.Root, end: "*"},
		{key: "", end: "\x00"},
		{key: "\x00", end: "\x00"},
		{key: "/", end: "0"},
		{key: pando.RevisionsOf(web), end: "\x00"},               // from this key on
		{key: pando.RevisionKey(web, 1), end: "/pando/revisio~"}, // all revisions
		{key: pando.KindEndpoints.Under(), end: "/pando/z"},
		{key: pando.KindRevision.Under(), end: "*"},
		{key: "/pando/revision/default", end: "*"},
		{key: "/pando/revision/default/we", end: "*"}, // no service, but a prefix of several
		{key: "/pando/revision//web/1"},
		{key: pando.InstancesOn(web, "h3"), end: "*"},
		{key: "/pando/instance/default/web/h2", end: "*"}, // also h22
		{key: "/pando/instance/default/web", end: "*"},
		{key: pando.KindDecision.Under() + "default/web/d1"},
		{key: access.AdmissionsKey},
		{key: "/pando/hostile/x"},
		{key: "/other/x"},
	} {
		from, end := string(c.key), c.end
		if end == "*" {
			from, end = prefix(c.key)
		}
		s, err := scopeOf("h2", []byte(from), []byte(end))
		if (err == nil) != c.ok || c.ok && s.of != c.of {
			t.Errorf("%q to %q: %+v, %v; want allowed %v, of %v", from, end, s, err, c.ok, c.of)
		}
	}
}

// No range that passes contains a key of another scope.
func TestNoRangeLeavesItsScope(t *testing.T) {
	part := rapid.SampledFrom([]string{"", "/", "/pando/", "revision", "instance", "intent",
		"decision", "endpoints", "default", "bank", "web", "vault", "h2", "h22", "h3", "\x00", "~", "0"})
	text := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(part, 0, 9).Draw(t, "parts"), "")
	})
	secrets := []string{
		"/pando/instance/default/web/h3/web-1", "/pando/instance/default/web/h22/web-1",
		"/pando/revision/bank/vault/00000001", "/pando/intent/bank/vault/i1",
		"/pando/decision/bank/vault/d1",
	}
	rapid.Check(t, func(t *rapid.T) {
		from, end := text.Draw(t, "from"), text.Draw(t, "end")
		s, err := scopeOf("h2", []byte(from), []byte(end))
		if err != nil {
			return
		}
		for _, k := range secrets {
			in := k == from || end != "" && k >= from && (k < end || end == "\x00")
			if in && (!s.bound() || !strings.HasPrefix(k, string(s.prefix))) {
				t.Fatalf("%q to %q has %s, and is taken for %+v", from, end, k, s)
			}
		}
	})
}

// A condition on a value, or on a range, would reveal records of other services.
func TestATransactionReadsNothingElse(t *testing.T) {
	web, vault := pando.DefaultService("web"), pando.ServiceKey{Tenant: "bank", Name: "vault"}
	get := func(k pando.Key, keysOnly bool, end string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
			Key: []byte(k), RangeEnd: []byte(end), KeysOnly: keysOnly}}}
	}
	on := func(k pando.Key, end string, target pb.Compare_CompareTarget) *pb.TxnRequest {
		return &pb.TxnRequest{Compare: []*pb.Compare{
			{Key: []byte(k), RangeEnd: []byte(end), Target: target},
		}}
	}
	secret := pando.RevisionKey(vault, 1)
	m := pando.Member{Name: "h2"}
	for what, c := range map[string]struct {
		txn *pb.TxnRequest
		ok  bool
	}{
		"which condition failed": {ok: true, txn: &pb.TxnRequest{Failure: []*pb.RequestOp{
			get(pando.Instance{Service: web, Host: "h2", ID: "a"}.Key(), true, ""), get(secret, true, "")}}},
		"its own instance": {ok: true, txn: &pb.TxnRequest{Failure: []*pb.RequestOp{
			get(pando.Instance{Service: web, Host: "h2", ID: "a"}.Key(), false, "")}}},
		"a revision":            {txn: &pb.TxnRequest{Failure: []*pb.RequestOp{get(secret, false, "")}}},
		"after a success":       {txn: &pb.TxnRequest{Success: []*pb.RequestOp{get(secret, false, "")}}},
		"all keys":              {txn: &pb.TxnRequest{Failure: []*pb.RequestOp{get("/", true, "0")}}},
		"a value":               {txn: on(secret, "", pb.Compare_VALUE)},
		"a range":               {txn: on(secret, "~", pb.Compare_MOD)},
		"a revision of one key": {ok: true, txn: on(secret, "", pb.Compare_MOD)},
	} {
		if err := mayRead(m, c.txn); (err == nil) != c.ok {
			t.Errorf("%s: %v, want allowed %v", what, err, c.ok)
		}
	}
}
