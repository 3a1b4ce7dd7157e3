package agent

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/agent/room"
)

// newRoom returns the guard of the disk with the volumes, or nil.
func newRoom(a *Agent) *room.Guard {
	if a.config.Programs.Disk == nil {
		return nil
	}
	return room.New(room.Config{Host: a.config.Host.Name, Disk: a.config.Programs.Disk, Held: a.heldVolumes,
		End: a.outgrew, Clock: a.config.Clock, Log: a.config.Log})
}

// heldVolumes returns the volumes that programs of this host may write.
func (a *Agent) heldVolumes() (out []room.Held) {
	a.records.Lock()
	defer a.records.Unlock()
	for _, r := range a.crews.AllIn(a.records.World) {
		if !r.Shown.Runs {
			continue
		}
		spec, _ := a.records.World.SpecOf(r.Service, r.Shown.Instance.Revision)
		out = append(out, room.HeldBy(r.Shown.Instance, spec)...)
	}
	return out
}

// outgrew makes an instance fail because of its volumes.
func (a *Agent) outgrew(i pando.InstanceID, reason string) {
	if r, err := a.crews.Runner(i); err == nil {
		r.Outgrown(reason)
	}
}

// admitVolumes returns why the volumes of an instance keep it from a start, or nil.
func (a *Agent) admitVolumes(ctx context.Context, i pando.Instance, spec pando.Spec) error {
	if a.room == nil {
		return nil
	}
	return a.room.Admit(ctx, room.HeldBy(i, spec))
}

// mayWrite returns why this host takes no more data of an instance, or nil.
func (a *Agent) mayWrite() error {
	if a.room == nil {
		return nil
	}
	return a.room.MayWrite()
}
