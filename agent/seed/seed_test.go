package seed

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"pando.run/pando"
)

// kept are the snapshots of a host.
type kept struct {
	pando.Snapshots
	all []pando.SealedSnapshot
}

func (k kept) Kept(pando.ServiceKey) ([]pando.SealedSnapshot, error) { return k.all, nil }

var web = pando.DefaultService("web")

func storeOf(hash string) *Store {
	one := pando.SealedSnapshot{SnapshotStatus: pando.SnapshotStatus{Service: web, Revision: 2,
		SpecHash: hash, Digest: "sha256:1", Seed: true}}
	return New(kept{all: []pando.SealedSnapshot{one}}, slog.New(slog.DiscardHandler))
}

// A seed is of a spec. One with the same number, after a restore or in a new service of the same
// name, has no seed yet.
func TestASeedIsOfItsSpecAlone(t *testing.T) {
	for _, hash := range []string{"one", ""} {
		s := storeOf(hash)
		other, _ := s.Find(web, Version{2, "two"})
		if now, _ := s.Find(web, Version{2, hash}); now != "sha256:1" || other != "" {
			t.Errorf("of the spec %q it finds %q, and of another %q", hash, now, other)
		}
	}
}

// A seed that an instance could not continue goes, with the reason. Another seed stays.
func TestARejectedSeedIsGone(t *testing.T) {
	s, v := storeOf(""), Version{Number: 2}
	s.Reject(web, v, "sha256:another", "the seed is of another revision")
	if now, _ := s.Find(web, v); now != "sha256:1" {
		t.Errorf("the seed is %q", now)
	}
	s.Reject(web, v, "sha256:1", "it exited with 1")
	if now, why := s.Find(web, v); now != "" || !strings.Contains(why, "exited with 1") {
		t.Errorf("the seed is %q (%s)", now, why)
	}
}

// Seeds that fail again and again are not taken any more. A server that is away is no failure.
func TestFewSeedsOfARevisionFail(t *testing.T) {
	s, v := New(kept{}, slog.New(slog.DiscardHandler)), Version{Number: 1}
	takes := func(err error) bool {
		if !s.BeginTaking(web, v) {
			return false
		}
		s.EndTaking(web, v, "", err)
		return true
	}
	for range 2 * FailedMax {
		if !takes(pando.ErrUnavailable) {
			t.Fatal("no seed is taken after the server was away")
		}
	}
	for range FailedMax {
		takes(errors.New("the disk is full"))
	}
	if takes(nil) {
		t.Error("a further seed is taken")
	}
}
