//go:build soak

package etcd

// Three members need a quiet machine: on a starved one, an election takes more than a minute. `make
// soak` runs them.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"pando.run/pando"
)

// three starts a single server, makes it one of several, and adds two.
func (c *peerCluster) three() [3]*seat {
	c.Helper()
	all := [3]*seat{c.seat("one"), c.seat("two"), c.seat("three")}
	single := c.config(all[0], nil)
	single.Peers, single.Name = nil, ""
	s, err := Start(c.Context(), single)
	if err != nil {
		c.Fatal(err)
	}
	commit(c.T, s.Registry(), pando.Txn{Put: []pando.Stored{service("early")}})
	if err := s.Close(); err != nil {
		c.Fatal(err)
	}
	c.start(all[0], nil)
	for _, next := range all[1:] {
		c.add(all[0], next)
	}
	return all
}

// add adds a server by one that is there, and waits until the new one votes.
func (c *peerCluster) add(by, next *seat) {
	c.Helper()
	var join map[string]string
	eventually(c.T, "add server "+next.name, func() (err error) {
		join, err = by.Registry().AddServer(c.Context(), next.name, next.address)
		return err
	})
	c.start(next, join)
	eventually(c.T, "the vote of "+next.name, func() error {
		return votes(by.Registry(), next.name)
	})
}

// votes returns nil if a server has a vote.
func votes(r *Registry, name string) error {
	all, err := r.Servers(context.Background())
	for _, p := range all {
		if p.Name == name && !p.Learner && err == nil {
			return nil
		}
	}
	return fmt.Errorf("the servers are %+v (%w)", all, err)
}

// reads returns nil if a server has these services.
func reads(r *Registry, names ...string) error {
	got, err := r.Snapshot(context.Background(), pando.Root+"service/")
	if err != nil {
		return err
	}
	have := map[pando.Key]bool{}
	for _, rec := range got.Records {
		have[rec.Key] = true
	}
	for _, n := range names {
		if !have[service(n).Key()] {
			return fmt.Errorf("no record of %s among %d", n, len(got.Records))
		}
	}
	return nil
}

// A single server becomes one of three, which outlive the death of one, the loss of its disk and
// its return as a new one.
func TestThreeServersOutliveTheLossOfOne(t *testing.T) {
	t.Parallel()
	c := newPeerCluster(t)
	all := c.three()
	for _, s := range all {
		eventually(t, s.name+" to have the record", func() error { return reads(s.Registry(), "early") })
		puts(t, s.Registry(), "by-"+s.name)
	}
	all[0].Close() // the first server dies, and its disk with it
	if err := os.RemoveAll(all[0].dir); err != nil {
		t.Fatal(err)
	}
	puts(t, all[1].Registry(), "without-one")
	eventually(t, "two to remove one", func() error {
		alive := map[string]bool{"two": true, "three": true}
		return all[1].Registry().RemoveServer(t.Context(), "one", alive)
	})
	back := c.seat("one")
	c.add(all[1], back)
	eventually(t, "the new server to have all", func() error {
		return reads(back.Registry(), "early", "by-one", "by-two", "by-three", "without-one")
	})
	puts(t, back.Registry(), "again")
}

// One of three servers changes nothing, and it follows the others when they are back.
func TestAMinorityChangesNothing(t *testing.T) {
	t.Parallel()
	c := newPeerCluster(t)
	all := c.three()
	all[1].Close()
	all[2].Close()
	lone := all[0].Registry()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := lone.Commit(ctx, pando.Txn{Put: []pando.Stored{service("lost")}})
	if !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("a lone server takes a write: %v", err)
	}
	known, err := lone.Servers(t.Context())
	if len(known) != 3 || !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("without a quorum the servers are %+v (%v)", known, err)
	}
	err = lone.RemoveServer(t.Context(), "two", map[string]bool{"one": true})
	if !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("a lone server removes another: %v", err)
	}
	c.start(all[1], nil)
	puts(t, lone, "found")
	c.start(all[2], nil)
	eventually(t, "three to follow", func() error { return reads(all[2].Registry(), "found") })
}

// A removed server ends.
func TestARemovedServerEnds(t *testing.T) {
	t.Parallel()
	c := newPeerCluster(t)
	all := c.three()
	answers := map[string]bool{"one": true, "two": true, "three": true}
	eventually(t, "one to remove three", func() error {
		return all[0].Registry().RemoveServer(t.Context(), "three", answers)
	})
	select {
	case err := <-all[2].Err():
		if !errors.Is(err, ErrRemoved) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(longPatience):
		t.Error("a removed server keeps running")
	}
	puts(t, all[1].Registry(), "without-three")
}
