package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// slowImages is a store whose pulls end when the test lets them.
type slowImages struct {
	pando.Images
	here  bool
	end   chan error
	hosts []pando.HostName
	pulls int
}

func (s *slowImages) Proven(pando.Image) bool { return true }

func (s *slowImages) Root(string, string) (pando.ImageRoot, error) {
	if !s.here {
		return pando.ImageRoot{}, pando.ErrNotReady
	}
	return pando.ImageRoot{}, nil
}

func (s *slowImages) Pull(ctx context.Context, _ pando.Image, hosts []pando.Host) error {
	s.pulls++
	for _, h := range hosts {
		s.hosts = append(s.hosts, h.Name)
	}
	select {
	case err := <-s.end:
		s.here = err == nil
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withImage gives the service a revision 2 with an image, and a store to the agent.
func (b *bench) withImage() *slowImages {
	images := &slowImages{end: make(chan error)}
	b.agent.supplier.Images = images
	spec := pando.Spec{Name: "web", Command: []string{"web"}, Scale: pando.Scale{Min: 1, Max: 3},
		Image: pando.Image{Reference: "shop/web", Digest: "sha256:0", Host: "h3"}}
	b.put(pando.Revision{Service: web, Number: 2, Spec: spec.WithDefaults(),
		State: pando.RevisionCurrent})
	return images
}

func TestAnInstanceWaitsForItsImageAndThenStarts(t *testing.T) {
	onBench(t, func(b *bench) {
		images := b.withImage()
		b.put(pando.Host{Name: "h2"}, pando.Host{Name: "h3"})
		b.place("web-1", 2)
		b.pass(time.Hour) // a pull may take long: no deadline of readiness runs
		b.phase("web-1", pando.PhasePlaced)
		if why := b.world().Instances["web-1"].V.Reason; !strings.Contains(why, "on the way: shop/web") {
			t.Errorf("the reason while it waits is %q", why)
		}
		if want := []pando.HostName{"h3", "h2"}; !slices.Equal(images.hosts, want) {
			t.Errorf("asked %v, want the host that read the image first: %v", images.hosts, want)
		}
		images.end <- nil
		synctest.Wait()
		b.phase("web-1", pando.PhaseStarting)
		b.place("web-2", 2) // its layers are here now
		b.phase("web-2", pando.PhaseStarting)
		if images.pulls != 1 {
			t.Errorf("%d pulls, want 1", images.pulls)
		}
	})
}

func TestAnInstanceWaitsForItsBundle(t *testing.T) {
	onBench(t, func(b *bench) {
		images := b.withImage()
		r := b.world().Revisions[web][2].V
		r.Number, r.Spec.Image = 3, pando.Image{}
		r.Spec.Bundle = pando.Bundle{Folder: "/srv/site", Digest: "sha256:1", Host: "h2"}
		b.put(r, pando.Host{Name: "h2"}, pando.Host{Name: "h3"})
		b.place("web-1", 3)
		b.phase("web-1", pando.PhasePlaced)
		why := b.world().Instances["web-1"].V.Reason
		if !strings.Contains(why, "on the way: bundle:/srv/site") {
			t.Errorf("the reason while it waits is %q", why)
		}
		if want := []pando.HostName{"h2", "h3"}; !slices.Equal(images.hosts, want) {
			t.Errorf("asked %v, want %v", images.hosts, want)
		}
		images.end <- nil
		synctest.Wait()
		b.phase("web-1", pando.PhaseStarting)
		if use := b.agent.ImagesInUse(); !use["sha256:1"] || !use["sha256:0"] {
			t.Errorf("in use are %v", use)
		}
	})
}

func TestAnImageThatCannotBeHadFailsItsInstanceAlone(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		images := b.withImage()
		b.place("web-2", 2)
		images.end <- errors.New("the registry is gone")
		synctest.Wait()
		b.phase("web-2", pando.PhaseFailed)
		if why := b.world().Instances["web-2"].V.Reason; !strings.Contains(why, "the registry is gone") {
			t.Errorf("the reason is %q", why)
		}
		b.phase("web-1", pando.PhaseInRotation)
	})
}

func TestAnInstanceMayLeaveWhileItsImageIsOnTheWay(t *testing.T) {
	onBench(t, func(b *bench) {
		images := b.withImage()
		b.place("web-1", 2)
		b.drain("web-1", true)
		b.pass(time.Second)
		if p := b.world().Instances["web-1"].V.Phase; p == pando.PhasePlaced {
			t.Errorf("it is still %s", p)
		}
		select {
		case images.end <- nil:
			t.Error("its pull goes on")
		default:
		}
		synctest.Wait()
		if n := len(b.sandboxes.All()); n > 0 {
			t.Errorf("%d sandboxes after it left", n)
		}
	})
}

func TestAHostWithoutAStoreRefusesImages(t *testing.T) {
	onBench(t, func(b *bench) {
		b.withImage()
		b.agent.supplier.Images = nil
		b.place("web-1", 2)
		b.phase("web-1", pando.PhaseFailed)
	})
}

// waitingImages is a store whose pulls wait for a registry until their context ends.
type waitingImages struct {
	slowImages
	active, ended int
}

func (s *waitingImages) Pull(ctx context.Context, _ pando.Image, _ []pando.Host) error {
	s.active++
	defer func() { s.active, s.ended = s.active-1, s.ended+1 }()
	defer pando.Waiting(ctx, agentClock{}, "registry r.example")()
	<-ctx.Done()
	return ctx.Err()
}

// agentClock is the time of the bubble.
type agentClock struct{ pando.Clock }

func (agentClock) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

func TestInstancesShareAPullThatEndsWithTheLastOfThem(t *testing.T) {
	onBench(t, func(b *bench) {
		b.withImage()
		images := &waitingImages{}
		b.agent.supplier.Images = images
		b.place("web-1", 2)
		b.place("web-2", 2)
		b.pass(pando.WaitToldAfter + time.Second)
		if images.active != 1 {
			t.Fatalf("%d pulls, want 1 for both", images.active)
		}
		for _, id := range []pando.InstanceID{"web-1", "web-2"} {
			why := b.world().Instances[id].V.Reason
			if !strings.Contains(why, "it waits for registry r.example") {
				t.Errorf("the reason of %s is %q", id, why)
			}
		}
		b.drain("web-1", true)
		b.pass(time.Minute)
		if images.ended > 0 {
			t.Error("the pull ended with the first instance")
		}
		b.drain("web-2", true)
		b.pass(time.Minute)
		if images.ended != 1 || images.active > 0 {
			t.Errorf("%d pulls ended, %d run on", images.ended, images.active)
		}
	})
}
