package etcd

import (
	"context"
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	etcdlease "go.etcd.io/etcd/server/v3/lease"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pando.run/pando"
)

// A member writes below its own keys only, in every form of a key.
func TestAMemberOwnsItsOwnKeysOnly(t *testing.T) {
	web := pando.DefaultService("web")
	for _, c := range []struct {
		key  pando.Key
		want bool
	}{
		{pando.HostKey("h2"), true},
		{pando.LeaderKey("host-h2"), true},
		{pando.Instance{Service: web, Host: "h2", ID: "web-1"}.Key(), true},
		{pando.HostKey("h3"), false},
		{pando.HostKey("h22"), false},
		{pando.HostKey("h2") + "/x", false},
		{pando.LeaderKey("host-h3"), false},
		{pando.LeaderKey("control"), false},
		{pando.Instance{Service: web, Host: "h3", ID: "web-1"}.Key(), false},
		{"/pando/instance/default/h2/h3/web-1", false},
		{"/pando/instance/default/web/h2", false},
		{"/pando/instance/default/web/h2/web-1/x", false},
		{pando.MemberKey("h2"), false},
		{web.Key(), false},
		{"/other/h2", false},
		{"", false},
	} {
		if got := owns("h2", c.key); got != c.want {
			t.Errorf("h2 owns %s: %v, want %v", c.key, got, c.want)
		}
	}
}

// held returns leases with the keys that each holds. A lease without an entry has ended.
func held(keys map[int64][]pando.Key) *leases {
	l := newLeases(nil)
	l.keys = func(_ context.Context, id int64) ([][]byte, error) {
		all, alive := keys[id]
		if !alive {
			return nil, etcdlease.ErrLeaseNotFound
		}
		var out [][]byte
		for _, k := range all {
			out = append(out, []byte(k))
		}
		return out, nil
	}
	return l
}

func TestAMemberUsesNoLeaseOfAnotherHost(t *testing.T) {
	l := held(map[int64][]pando.Key{1: {pando.HostKey("h2")}, 2: {pando.HostKey("h3")}, 3: nil})
	for id, want := range map[int64]codes.Code{1: codes.OK, 2: codes.PermissionDenied, 3: codes.OK,
		4: codes.OK} {
		if err := l.own(t.Context(), "h2", id); status.Code(err) != want {
			t.Errorf("lease %d: %v, want %v", id, err, want)
		}
	}
	broken := errors.New("out of reach")
	l.keys = func(context.Context, int64) ([][]byte, error) { return nil, broken }
	if err := l.own(t.Context(), "h2", 1); !errors.Is(err, broken) {
		t.Errorf("a lease of unknown keys is accepted: %v", err)
	}
}

func TestLeasesOfAMemberAreBounded(t *testing.T) {
	alive := map[int64][]pando.Key{}
	l := held(alive)
	ask := &pb.LeaseGrantRequest{TTL: leaseSecondsMax}
	for id := range int64(leasesMax) {
		if err := l.mayGrant(t.Context(), "h2", ask); err != nil {
			t.Fatalf("lease %d: %v", id, err)
		}
		alive[id+1] = nil
		l.note("h2", id+1)
	}
	if err := l.mayGrant(t.Context(), "h2", ask); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more than %d: %v", leasesMax, err)
	}
	if err := l.mayGrant(t.Context(), "h3", ask); err != nil {
		t.Errorf("another host: %v", err)
	}
	delete(alive, 1) // it ends, and leaves room for one
	if err := l.mayGrant(t.Context(), "h2", ask); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	for _, bad := range []*pb.LeaseGrantRequest{{TTL: leaseSecondsMax + 1}, {TTL: 1, ID: 77}} {
		if err := l.mayGrant(t.Context(), "h3", bad); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if err := l.mayRevoke("h3", 2); status.Code(err) != codes.PermissionDenied {
		t.Errorf("h3 ends the lease of h2: %v", err)
	}
	if err := l.mayRevoke("h2", 2); err != nil {
		t.Error(err)
	}
}

// The open calls of a host end when it is no member any more, or a member with another key. Other
// hosts keep theirs.
func TestCallsOfARemovedMemberEnd(t *testing.T) {
	s := newStreams()
	open := func(h pando.HostName, key string) context.Context {
		ctx, _, err := s.begin(t.Context(), pando.Member{Name: h, PublicKey: key})
		if err != nil {
			t.Fatal(err)
		}
		return ctx
	}
	removed, renewed, same := open("h2", "a"), open("h3", "a"), open("h4", "a")
	unknown := open("h5", "") // admitted by an earlier build, without a key
	s.sever(func(h pando.HostName) (pando.Member, bool) {
		return pando.Member{Name: h, PublicKey: map[pando.HostName]string{"h3": "b", "h4": "a",
			"h5": "c"}[h]}, h != "h2"
	})
	for _, c := range []struct {
		name  string
		ctx   context.Context
		ended bool
	}{{"removed", removed, true}, {"with a new key", renewed, true}, {"unchanged", same, false},
		{"without a key", unknown, false}} {
		if got := c.ctx.Err() != nil; got != c.ended {
			t.Errorf("%s: ended %v", c.name, got)
		}
		if c.ended && !errors.Is(context.Cause(c.ctx), pando.ErrForbidden) {
			t.Errorf("%s: the cause is %v", c.name, context.Cause(c.ctx))
		}
	}
}

func TestOpenCallsOfAMemberAreBounded(t *testing.T) {
	s := newStreams()
	var ends []context.CancelCauseFunc
	for range streamsMax {
		_, end, err := s.begin(t.Context(), pando.Member{Name: "h2"})
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	if _, _, err := s.begin(t.Context(),
		pando.Member{Name: "h2"}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more than %d: %v", streamsMax, err)
	}
	if _, end, err := s.begin(t.Context(), pando.Member{Name: "h3"}); err != nil {
		t.Errorf("another host: %v", err)
	} else {
		end(nil)
	}
	ends[0](nil)
	if _, end, err := s.begin(t.Context(), pando.Member{Name: "h2"}); err != nil {
		t.Errorf("after one has ended: %v", err)
	} else {
		end(nil)
	}
	for _, end := range ends[1:] {
		end(nil)
	}
	if len(s.of) > 0 {
		t.Errorf("ended calls are kept: %v", s.of)
	}
}

// A caller tests for the sentinels of the root. Each answer of etcd becomes one of them.
func TestErrorsOfEtcdBecomeSentinels(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want error
	}{
		{"no error", t.Context(), nil, nil},
		{"the caller left", ended, status.Error(codes.Unavailable, "x"), context.Canceled},
		{"unavailable", t.Context(), status.Error(codes.Unavailable, "x"), pando.ErrUnavailable},
		{"a deadline of etcd", t.Context(), status.Error(codes.DeadlineExceeded, "x"),
			pando.ErrUnavailable},
		{"refused by the gate", t.Context(), status.Error(codes.PermissionDenied, "forbidden: x"),
			pando.ErrForbidden},
		{"full, by the guard of another process", t.Context(),
			status.Error(codes.ResourceExhausted, pando.ErrStoreFull.Error()+": 3 MiB free"),
			pando.ErrStoreFull},
	} {
		if got := sentinel(c.ctx, c.err); !errors.Is(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if err := sentinel(t.Context(), status.Error(codes.Internal,
		"a bug")); status.Code(err) != codes.Internal {
		t.Errorf("an unknown error is hidden: %v", err)
	}
}
