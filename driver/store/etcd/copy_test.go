package etcd

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"pando.run/pando"
)

// The certificate of a member opens the store from the member's own addresses only.
func TestACopyOfAMemberIsRefusedAndNamed(t *testing.T) {
	var log strings.Builder
	g := gate{copies: &copies{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	m := pando.Member{
		Name: "h2", Address: netip.MustParseAddr("192.0.2.2"),
		Address6: netip.MustParseAddr("2001:db8::2"),
	}
	at := func(text string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text)) }
	for _, own := range []net.Addr{
		at("192.0.2.2:1"), at("[2001:db8::2]:1"), at("[::ffff:192.0.2.2]:1"), at("127.0.0.1:1"),
		&net.UnixAddr{Name: "/run/x"},
	} {
		if err := g.comesFrom(m, own); err != nil {
			t.Errorf("from %s: %v", own, err)
		}
	}
	if err := g.comesFrom(pando.Member{Name: "h2"}, at("192.0.2.9:1")); err != nil {
		t.Errorf("a member without an address: %v", err)
	}
	for range 3 {
		for _, other := range []net.Addr{at("192.0.2.9:1"), at("192.0.2.9:77")} {
			err := g.comesFrom(m, other)
			if !errors.Is(err, pando.ErrForbidden) || !strings.Contains(err.Error(), "192.0.2.9") {
				t.Errorf("from %s: %v", other, err)
			}
		}
	}
	if n := strings.Count(log.String(), "host=h2"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log.String())
	}
}

// A host reports the life of its instances. It never answers an ask.
func TestAHostFollowsAnIntentAndNeverAnswersIt(t *testing.T) {
	all := []pando.IntentState{
		pando.IntentAsked, pando.IntentGranted, pando.IntentRefused, pando.IntentCoalesced,
		pando.IntentPlaced, pando.IntentStarting, pando.IntentReady, pando.IntentInRotation,
		pando.IntentDraining, pando.IntentMerged, pando.IntentDead, pando.IntentFailed,
	}
	answers := map[pando.IntentState]bool{
		pando.IntentAsked: true, pando.IntentGranted: true, pando.IntentRefused: true,
		pando.IntentCoalesced: true, pando.IntentPlaced: true, pando.IntentDraining: true,
	}
	for _, was := range all {
		for _, next := range all {
			may := mayFollow(was, next)
			switch {
			case was == next && !may:
				t.Errorf("%s cannot stay", was)
			case was != next && may && answers[next]:
				t.Errorf("a host answers: %s becomes %s", was, next)
			case was == pando.IntentAsked && may && next != was && next != pando.IntentFailed:
				t.Errorf("an ask without an answer becomes %s", next)
			case was != next && may && was.Ended():
				t.Errorf("%s was final and becomes %s", was, next)
			}
		}
	}
	for _, c := range [][2]pando.IntentState{
		{pando.IntentPlaced, pando.IntentInRotation}, {pando.IntentGranted, pando.IntentMerged},
		{pando.IntentDraining, pando.IntentDead}, {pando.IntentPlaced, pando.IntentFailed},
	} {
		if !mayFollow(c[0], c[1]) {
			t.Errorf("%s cannot become %s", c[0], c[1])
		}
	}
}

func TestALateStepIsAConflictAndNoCrime(t *testing.T) {
	key := pando.Intent{ID: "i1", Service: pando.DefaultService("web")}.Key()
	w := &rights{asked: []*pb.Compare{{
		Key: []byte(key), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: 7},
	}}}
	if !w.late(key, 8) || w.late(key, 7) || w.late(key+"x", 8) {
		t.Errorf("at 8: %v, at 7: %v, another: %v", w.late(key, 8), w.late(key, 7), w.late(key+"x", 8))
	}
}
