package agent

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// fullVolumes is a disk on which every volume has the same size.
type fullVolumes struct {
	bytes atomic.Int64
	full  atomic.Bool
}

func (f *fullVolumes) Room() (pando.DiskRoom, error) {
	if f.full.Load() {
		return pando.DiskRoom{Bytes: 1 << 40, Free: 1 << 29}, nil
	}
	return pando.DiskRoom{Bytes: 1 << 40, Free: 1 << 39}, nil
}

func (f *fullVolumes) MeasureVolume(context.Context, pando.VolumePart) (pando.VolumeUse, error) {
	return pando.VolumeUse{Bytes: f.bytes.Load()}, nil
}

// An instance whose volume outgrows its size fails by name, and the next one does not start.
func TestAnInstanceWhoseVolumeOutgrowsItsSizeFails(t *testing.T) {
	onBench(t, func(b *bench) {
		b.stop()
		volumes := &fullVolumes{}
		b.disk = volumes
		b.start()
		spec := pando.Spec{Name: "web", Command: []string{"web"},
			Volumes: []pando.Volume{{Name: "data", Path: "/data", Bytes: 1 << 20}}}
		b.put(pando.Revision{Service: web, Number: 2, Spec: spec.WithDefaults(),
			State: pando.RevisionCurrent})
		b.serving("web-1", 2)
		b.pass(time.Minute)
		volumes.bytes.Store(2 << 20)
		b.pass(20 * time.Second)
		synctest.Wait()
		for _, box := range b.sandboxes.All() {
			if box.Instance() == "web-1" {
				t.Errorf("its program runs on")
			}
		}
		b.place("web-2", 2)
		b.pass(time.Second)
		const want = "volume data/0 of web has 2 MiB of at most 1 MiB"
		named := map[pando.InstanceID]bool{}
		for _, d := range b.world().DecisionsOf(web) {
			named[d.Instance] = named[d.Instance] || strings.Contains(d.Reason, want)
		}
		if !named["web-1"] || !named["web-2"] {
			t.Errorf("the decisions are %+v", b.world().DecisionsOf(web))
		}
		volumes.bytes.Store(1 << 19)
		b.place("web-3", 2)
		b.pass(time.Second)
		if i := b.world().Instances["web-3"].V; i.Phase == pando.PhaseFailed {
			t.Errorf("after files were removed: %s", i.Reason)
		}
	})
}

// A full disk takes no more state, but an instance may still delete, commit and end.
func TestAFullDiskTakesNoMoreState(t *testing.T) {
	onBench(t, func(b *bench) {
		b.stop()
		disk := &fullVolumes{}
		b.disk = disk
		b.start()
		b.serving("web-1", 1)
		b.write("web-1", "before", true)
		disk.full.Store(true)
		err := b.agent.self.StatePut(b.ctx, "web-1", "log", []byte("after"))
		patch := b.agent.self.StatePatch(b.ctx, "web-1", "hits", []byte("1"))
		for _, err := range []error{err, patch} {
			if !errors.Is(err, pando.ErrStoreFull) || !strings.Contains(err.Error(), "has 512 MiB free") {
				t.Errorf("a write to a full disk: %v", err)
			}
		}
		_, err = b.agent.self.StateCommit(b.ctx, "web-1", pando.StateChange{Message: "the last"})
		b.ok(errors.Join(err, b.agent.self.StateDelete(b.ctx, "web-1", "log")))
	})
}
