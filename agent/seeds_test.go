package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/seed"
)

// nursery is the sandboxes, the images and the snapshots of a host that can freeze its programs. It
// outlives an agent.
type nursery struct {
	pando.Sandboxes
	pando.Images
	kept   []pando.SealedSnapshot
	frozen int           // number of freezes
	fails  error         // of a freeze
	barren error         // of a start that continues a snapshot
	slow   time.Duration // the time to store the files
	starts []string      // From of each start
}

// plant is a sandbox with a program for freezes.
type plant struct {
	pando.Sandbox
	of *nursery
}

func (p plant) Freeze(ctx context.Context, _ string) (pando.Machine, error) {
	p.of.frozen++
	if p.of.fails == nil {
		_ = p.Pause(ctx)
	}
	return pando.Machine{}, p.of.fails
}

func (n *nursery) Start(ctx context.Context, s pando.SandboxSpec) (pando.Sandbox, error) {
	n.starts = append(n.starts, s.From)
	if s.From != "" && n.barren != nil {
		return nil, n.barren
	}
	box, err := n.Sandboxes.Start(ctx, s)
	return plant{box, n}, err
}

func (n *nursery) Proven(pando.Image) bool { return true }

func (n *nursery) Root(digest, _ string) (pando.ImageRoot, error) {
	return pando.ImageRoot{Layers: []string{"layer of " + digest}}, nil
}

func (n *nursery) Keep(
	ctx context.Context, s pando.SnapshotStatus, keys pando.SnapshotKeys,
	freeze func(string, *pando.SnapshotStatus) error,
) (pando.SealedSnapshot, error) {
	if err := freeze("", &s); err != nil {
		return pando.SealedSnapshot{}, err
	}
	time.Sleep(n.slow)
	s.Digest = fmt.Sprintf("sha256:%02dabcdef0123456789", n.frozen)
	out, err := keys.Seal.Prove(s)
	n.kept = append([]pando.SealedSnapshot{out}, n.kept...)
	return out, err
}

// Open brings the key of an encrypted snapshot.
func (n *nursery) Open(
	ctx context.Context, _ pando.ServiceKey, digest string,
	key func(context.Context) (pando.SnapshotKey, error),
) (from string, done func(), err error) {
	for _, s := range n.kept {
		if s.Digest == digest && s.Encrypted {
			_, err = key(ctx)
		}
	}
	return "layer of " + digest, func() {}, err
}

func (n *nursery) Kept(pando.ServiceKey) ([]pando.SealedSnapshot, error) { return n.kept, nil }

func (n *nursery) Drop(_ context.Context, _ pando.ServiceKey, digest string) error {
	n.kept = slices.DeleteFunc(n.kept, func(s pando.SealedSnapshot) bool { return s.Digest == digest })
	return nil
}

var snapshotKeys = pando.SnapshotKeys{Files: "key", Seal: "seal"}

// seeded gives the service revision n. New instances of it continue a seed.
func (b *bench) seeded(n int) {
	b.Helper()
	spec := pando.Spec{Name: "web", Command: []string{"web"}, Scale: pando.Scale{Min: 1, Max: 9},
		Replicate: pando.Replicate{From: pando.FromSnapshot}}
	b.put(pando.Revision{Service: web, Number: n, Spec: spec.WithDefaults(),
		State: pando.RevisionCurrent})
}

func (b *bench) nursery() *nursery {
	n := &nursery{Sandboxes: b.sandboxes}
	b.useNursery(n)
	b.seeded(2)
	return n
}

func (b *bench) useNursery(n *nursery) {
	b.change = func(c *Config) {
		c.Programs.Sandboxes, c.Programs.Images, c.Programs.Snapshots = n, n, n
		c.Server.SnapshotKeys = func(context.Context, pando.InstanceID) (pando.SnapshotKeys, error) {
			return snapshotKeys, nil
		}
	}
	b.restart()
}

// decided waits for a decision about the seeds that contains a text.
func (b *bench) decided(want string) {
	b.Helper()
	b.pass(time.Second)
	var seen []string
	for _, d := range b.world().DecisionsOf(web) {
		if strings.Contains(d.Reason, want) {
			return
		}
		seen = append(seen, d.Reason)
	}
	b.Errorf("no decision contains %q: %q", want, seen)
}

// from returns the seed that an instance continues.
func (b *bench) from(id pando.InstanceID) string {
	b.Helper()
	return b.world().Instances[id].V.From
}

func TestCopiesContinueTheFirstInstanceOfTheirRevision(t *testing.T) {
	onBench(t, func(b *bench) {
		n := b.nursery()
		n.slow = time.Minute
		b.serving("web-1", 2) // in rotation before the files are stored
		if n.frozen != 1 || b.sandboxes.All()[0].Paused() {
			t.Errorf("%d freezes, paused: %v", n.frozen, b.sandboxes.All()[0].Paused())
		}
		b.serving("web-2", 2)
		if from := b.from("web-2"); from != "" || n.frozen != 1 {
			t.Errorf("while the seed is stored, a copy continues %q after %d freezes", from, n.frozen)
		}
		b.pass(2 * time.Minute)
		b.decided("new instances continue it")
		b.place("web-3", 2) // reports nothing: its program is ready already
		b.phase("web-3", pando.PhaseInRotation)
		if from := b.from("web-3"); from != n.kept[0].Digest || n.starts[2] != "layer of "+from {
			t.Errorf("a copy continues %q, started %q", from, n.starts)
		}
		if !b.agent.ImagesInUse()[n.kept[0].Digest] {
			t.Error("the seed is not in use: a sweep would delete it")
		}
		b.seeded(3) // a deploy: the next revision has a seed of its own
		b.serving("web-4", 3)
		b.pass(2 * time.Minute)
		if n.frozen != 2 || b.from("web-4") != "" || n.kept[0].Revision != 3 || !n.kept[0].Seed {
			t.Errorf("%d freezes, kept %+v", n.frozen, n.kept)
		}
	})
}

func TestANewAgentFindsTheSeeds(t *testing.T) {
	onBench(t, func(b *bench) {
		n := b.nursery()
		b.serving("web-1", 2)
		b.decided("new instances continue it")
		b.restart()
		b.place("web-2", 2)
		b.phase("web-2", pando.PhaseInRotation)
		if b.from("web-2") != n.kept[0].Digest || n.frozen != 1 {
			t.Errorf("a copy continues %q after %d freezes", b.from("web-2"), n.frozen)
		}
		b.ok(b.agent.snapshots.DropSnapshot(b.ctx, web, n.kept[0].Digest))
		b.serving("web-3", 2)
		if b.from("web-3") != "" || n.frozen != 2 {
			t.Errorf("after its removal a copy continues %q after %d freezes", b.from("web-3"), n.frozen)
		}
	})
}

// A program that cannot be stored serves, and so do its copies.
func TestAServiceWithoutASeedStartsCold(t *testing.T) {
	onBench(t, func(b *bench) {
		n := b.nursery()
		n.fails = errors.New("it holds a socket")
		for id := range 4 {
			b.serving(pando.InstanceID(fmt.Sprint("web-", id)), 2)
		}
		if n.frozen != seed.FailedMax {
			t.Errorf("%d freezes, want %d", n.frozen, seed.FailedMax)
		}
		b.decided("start cold: snapshot of web-0: it holds a socket")
		if from := n.starts; slices.ContainsFunc(from, func(s string) bool { return s != "" }) {
			t.Errorf("started from %q", from)
		}
	})
}

func TestASeedThatFailsIsRejected(t *testing.T) {
	onBench(t, func(b *bench) {
		n := b.nursery()
		b.serving("web-1", 2)
		b.decided("new instances continue it")
		n.barren = errors.New("another kernel")
		b.place("web-2", 2)
		b.phase("web-2", pando.PhaseStarting)
		if why := b.world().Instances["web-2"].V.Reason; !strings.Contains(why, "another kernel") ||
			!strings.Contains(why, "from its start") {
			t.Errorf("the reason of a cold start is %q", why)
		}
		b.ok(b.agent.self.Ready(b.ctx, "web-2")) // it is the next seed
		b.phase("web-2", pando.PhaseInRotation)
		if n.frozen != 2 || len(n.starts) != 3 {
			t.Errorf("%d freezes, starts %q", n.frozen, n.starts)
		}
		n.barren = nil
		b.place("web-3", 2)
		b.phase("web-3", pando.PhaseInRotation)
		if b.from("web-3") != n.kept[0].Digest {
			t.Errorf("a copy continues %q, want the newer seed %q", b.from("web-3"), n.kept[0].Digest)
		}
	})
}

// The seeds of old revisions are forgotten, so a host keeps a bounded number.
func TestSeedsOfOldRevisionsAreForgotten(t *testing.T) {
	onBench(t, func(b *bench) {
		n := b.nursery()
		for revision := 2; revision < 2+3*pando.SeedsMax; revision++ {
			b.seeded(revision)
			b.serving(pando.InstanceID(fmt.Sprint("web-", revision)), revision)
			b.pass(time.Second)
		}
		if got := len(b.agent.host.Seeds.Digests()); got != pando.SeedsMax || n.frozen != 3*pando.SeedsMax {
			t.Errorf("%d seeds are known after %d freezes, want %d", got, n.frozen, pando.SeedsMax)
		}
		synctest.Wait()
	})
}

// A server that does not answer costs one start its seed, and the seed remains.
func TestAnEncryptedSeedNeedsTheServer(t *testing.T) {
	onBench(t, func(b *bench) {
		n := b.nursery()
		var away error
		b.agent.supplier.SnapshotKeys = func(context.Context, pando.InstanceID) (pando.SnapshotKeys, error) {
			return snapshotKeys, away
		}
		b.serving("web-1", 2)
		b.pass(time.Second)
		if len(n.kept) != 1 || !n.kept[0].Encrypted {
			t.Fatalf("kept %+v", n.kept)
		}
		away = pando.ErrUnavailable
		b.serving("web-2", 2)
		if from := b.from("web-2"); from != "" {
			t.Errorf("without the key it continues %q", from)
		}
		away = nil
		b.place("web-3", 2)
		b.phase("web-3", pando.PhaseInRotation)
		if from := b.from("web-3"); from != n.kept[0].Digest || n.frozen != 1 {
			t.Errorf("with the key it continues %q, after %d snapshots", from, n.frozen)
		}
	})
}
