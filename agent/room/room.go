// Package room keeps the volumes of a host within their sizes, and a reserve of its disk free. It
// measures the volumes that run, and names the instances to end: those of a volume that has outgrown
// its size, and those of the volume that grew most while the disk fell below its reserve.
//
// A program that writes faster than the measurements exceeds its size for a moment. The guard reads
// the free space more often. The reserve holds more than a disk can write in between.
//
// The package never deletes a file, and never ends an instance whose volumes did not grow.
package room

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
)

const (
	// roomLook is the time between two looks at the free space, which are one system call each.
	roomLook = 250 * time.Millisecond
	// sizeLookMin and sizeLookMax bound the time between two measurements of a volume. A measurement
	// takes at most a twentieth of the time.
	sizeLookMin   = time.Second
	sizeLookMax   = 10 * time.Second
	sizeLookShare = 20
	// growthRate is what a volume is taken to grow by in a second, for the time of the next look.
	growthRate = 256 << 20
	// growthLeast is the growth of a volume that counts when the disk is nearly full.
	growthLeast = 1 << 20
	// measureMax bounds a measurement while the disk is nearly full.
	measureMax = 5 * time.Second
	// complainEvery is the time between two lines of the log about one full disk.
	complainEvery = time.Minute
)

// Held is a volume that an instance of this host may write.
type Held struct {
	Instance pando.InstanceID
	Part     pando.VolumePart
	Bytes    int64 // at most; 0: no limit
	Files    int64
}

// HeldBy returns the volumes that an instance of a spec may write. A volume of another service is one
// folder with that of its owner, and each spec has a limit of its own for it.
func HeldBy(i pando.Instance, s pando.Spec) (out []Held) {
	for _, v := range s.Volumes {
		if !v.ReadOnly {
			out = append(out, Held{i.ID,
				pando.VolumePart{Service: v.Owner(i.Service), Name: v.Name, Part: v.Part(i.Ordinal)},
				v.BytesMax(i.Service.Tenant), v.FilesMax(i.Service.Tenant)})
		}
	}
	return out
}

// Config is what a guard needs.
type Config struct {
	Host pando.HostName
	Disk pando.Disk
	// Held returns the volumes that instances of this host may write now.
	Held func() []Held
	// End ends an instance for a reason. It must not wait.
	End   func(i pando.InstanceID, reason string)
	Clock pando.Clock
	Log   *slog.Logger
}

// Guard bounds what the volumes of a host take. Its methods may be called at the same time.
type Guard struct {
	Config
	mu    sync.Mutex
	parts map[pando.VolumePart]*part // of the volumes that were held at the last look
	// low is the free space at which the next volume is ended. It falls with each that was.
	low        int64
	complained time.Time
	again      time.Time // of the next search for a volume that grows, after one in vain
}

// part is what is known of a volume.
type part struct {
	use  pando.VolumeUse
	at   time.Time // of the measurement
	next time.Time
	// stopped is why no instance starts with it while the disk is nearly full, or "".
	stopped string
}

// New returns a guard. Run starts it.
func New(c Config) *Guard {
	return &Guard{Config: c, parts: map[pando.VolumePart]*part{}, low: math.MaxInt64}
}

// Run looks at the disk and its volumes until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	var sizes sync.WaitGroup
	defer sizes.Wait()
	sizes.Go(func() {
		for pando.Sleep(ctx, g.Clock, sizeLookMin) == nil {
			g.lookAtSizes(ctx)
		}
	})
	for pando.Sleep(ctx, g.Clock, roomLook) == nil {
		g.lookAtRoom(ctx)
	}
}

// Admit returns why an instance may not start with its volumes, or nil.
func (g *Guard) Admit(ctx context.Context, all []Held) error {
	if len(all) == 0 {
		return nil
	}
	if err := g.MayWrite(); err != nil {
		return err
	}
	room, err := g.Disk.Room()
	if err != nil {
		return err
	}
	for _, h := range all {
		g.mu.Lock()
		p := g.parts[h.Part]
		var stopped string
		outgrown := false
		if p != nil {
			stopped, outgrown = p.stopped, outgrows(p.use, h) != ""
		}
		g.mu.Unlock()
		if stopped != "" && room.Free < room.Reserve() {
			return fmt.Errorf("%w: %s", pando.ErrRefused, stopped)
		}
		if !outgrown {
			continue
		}
		use, err := g.measure(ctx, h.Part)
		if err != nil {
			return err
		}
		if why := outgrows(use, h); why != "" {
			return fmt.Errorf("%w: %s", pando.ErrRefused, why)
		}
	}
	return nil
}

// MayWrite returns why nothing of a tenant may be written to the disk now, or nil. It takes half of the
// reserve: the other half is for those who write a little while one volume fills the disk.
func (g *Guard) MayWrite() error {
	room, err := g.Disk.Room()
	if err != nil || room.Free >= room.Floor() {
		return err
	}
	return fmt.Errorf("%w: %s; make room on that disk", pando.ErrStoreFull, g.nearlyFull(room))
}

// nearlyFull says how little room the disk has.
func (g *Guard) nearlyFull(r pando.DiskRoom) string {
	return fmt.Sprintf("the disk with the volumes of host %s has %d MiB free of %d MiB, and keeps %d MiB",
		g.Host, r.Free>>20, r.Bytes>>20, r.Reserve()>>20)
}

// outgrows returns why a volume is larger than it may be, or "".
func outgrows(u pando.VolumeUse, h Held) string {
	const next = "; give it a larger `size` in the spec, or remove the volume"
	switch {
	case h.Bytes > 0 && u.Bytes > h.Bytes:
		return fmt.Sprintf("%s has %d MiB of at most %d MiB%s", h.Part, u.Bytes>>20, h.Bytes>>20, next)
	case h.Files > 0 && u.Files > h.Files:
		return fmt.Sprintf("%s has %d files of at most %d, one for each 16 KiB of its size%s", h.Part,
			u.Files, h.Files, next)
	case u.Deep && h.Bytes > 0:
		return fmt.Sprintf("%s has more than %d folders in each other; remove the volume", h.Part,
			pando.VolumeDepthMax)
	}
	return ""
}

// lookAtSizes measures the volumes whose time has come, and ends the instances of those that have
// outgrown their sizes.
func (g *Guard) lookAtSizes(ctx context.Context) {
	for _, h := range g.due() {
		began := g.Clock.Now()
		use, err := g.measure(ctx, h.Part)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			g.Log.Warn("measure a volume", "volume", h.Part.String(), "error", err)
		}
		g.plan(h, use, began)
		g.endOutgrown(h.Part, use)
	}
}

// endOutgrown ends the instances with a part of a volume that has outgrown their limits.
func (g *Guard) endOutgrown(at pando.VolumePart, use pando.VolumeUse) {
	for _, h := range g.Held() {
		if why := outgrows(use, h); h.Part == at && why != "" {
			g.End(h.Instance, why)
		}
	}
}

// due returns one holder of each volume that is to be measured now. It forgets the volumes without a
// holder, except those whose instances were stopped.
func (g *Guard) due() (out []Held) {
	held := g.Held()
	g.mu.Lock()
	defer g.mu.Unlock()
	now, seen := g.Clock.Now(), map[pando.VolumePart]int{} // places in out, or -1
	for _, h := range held {
		at, again := seen[h.Part]
		switch {
		case !again && now.Before(g.part(h.Part).next):
			seen[h.Part] = -1
		case !again:
			seen[h.Part], out = len(out), append(out, h)
		case at >= 0 && h.Bytes > 0 && (out[at].Bytes == 0 || h.Bytes < out[at].Bytes):
			out[at] = h // services that share it may have limits of their own
		}
	}
	for at, p := range g.parts {
		if _, held := seen[at]; !held && p.stopped == "" && now.Sub(p.at) > complainEvery {
			delete(g.parts, at)
		}
	}
	return out
}

// part returns what is known of a volume. The caller holds the lock.
func (g *Guard) part(at pando.VolumePart) *part {
	if g.parts[at] == nil {
		g.parts[at] = &part{}
	}
	return g.parts[at]
}

// plan sets the time of the next measurement of a volume: before it could outgrow its size, if that
// takes little of the time.
func (g *Guard) plan(h Held, use pando.VolumeUse, began time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.Clock.Now()
	wait := sizeLookMax
	if h.Bytes > 0 {
		wait = min(wait, max(sizeLookMin, time.Duration(max(0, h.Bytes-use.Bytes)/growthRate)*time.Second))
	}
	g.part(h.Part).next = now.Add(max(wait, sizeLookShare*now.Sub(began)))
}

func (g *Guard) measure(ctx context.Context, at pando.VolumePart) (pando.VolumeUse, error) {
	use, err := g.Disk.MeasureVolume(ctx, at)
	if err != nil {
		return use, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.part(at)
	if use.Partial && use.Bytes < p.use.Bytes {
		return p.use, nil // it is not known to be smaller
	}
	p.use, p.at = use, g.Clock.Now()
	return use, nil
}

// lookAtRoom ends the instances of the volume that grew most, if the disk is below its reserve. The
// next one follows only once the disk has lost a further eighth of the reserve, so that volumes which
// grow slowly are left alone while somebody makes room.
func (g *Guard) lookAtRoom(ctx context.Context) {
	room, err := g.Disk.Room()
	if err != nil {
		g.complain("look for room on the disk of the volumes", "error", err)
		return
	}
	reserve := room.Reserve()
	g.mu.Lock()
	if room.Free >= reserve {
		g.low = reserve
		for _, p := range g.parts {
			p.stopped = ""
		}
		g.mu.Unlock()
		return
	}
	waits := room.Free >= g.low || g.Clock.Now().Before(g.again)
	g.mu.Unlock()
	if waits {
		return
	}
	began := g.Clock.Now()
	at, grew, since, ok := g.grewMost(ctx)
	if !ok {
		now := g.Clock.Now()
		g.mu.Lock()
		g.again = now.Add(sizeLookShare * now.Sub(began))
		g.mu.Unlock()
		g.complain(g.nearlyFull(room) + "; no volume grew: find out what fills the disk")
		return
	}
	why := fmt.Sprintf("%s: %s grew most, by %d MiB in %s; make room on that disk", g.nearlyFull(room),
		at, grew>>20, since.Round(time.Second))
	g.Log.Error("the volume that fills the disk is stopped", "reason", why)
	g.mu.Lock()
	g.part(at).stopped = why
	g.low = max(room.Free-reserve/8, reserve/16)
	g.mu.Unlock()
	g.endAll(at, why)
}

// growth is how much a volume grew.
type growth struct {
	part  pando.VolumePart
	bytes int64
	since time.Duration
}

// grewMost measures the volumes that instances hold, and returns the one that grew most since its
// measurement before. Those of operators come last.
func (g *Guard) grewMost(ctx context.Context) (pando.VolumePart, int64, time.Duration, bool) {
	ctx, cancel := context.WithTimeout(ctx, measureMax)
	defer cancel()
	before := map[pando.VolumePart]part{}
	g.mu.Lock()
	for at, p := range g.parts {
		before[at] = *p
	}
	g.mu.Unlock()
	var all []growth
	seen := map[pando.VolumePart]bool{}
	for _, h := range g.Held() {
		was := before[h.Part]
		if seen[h.Part] {
			continue
		}
		seen[h.Part] = true
		use, err := g.measure(ctx, h.Part)
		if was.at.IsZero() {
			continue // its first measurement
		}
		if grew := use.Bytes - was.use.Bytes; err == nil && grew >= growthLeast {
			all = append(all, growth{h.Part, grew, g.Clock.Now().Sub(was.at)})
		}
	}
	if len(all) == 0 {
		return pando.VolumePart{}, 0, 0, false
	}
	slices.SortStableFunc(all, func(a, b growth) int {
		mine := func(x growth) int {
			if x.part.Service.Tenant == pando.DefaultTenant {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(mine(a), mine(b)), cmp.Compare(b.bytes, a.bytes))
	})
	return all[0].part, all[0].bytes, all[0].since, true
}

// endAll ends the instances that may write a volume.
func (g *Guard) endAll(at pando.VolumePart, why string) {
	for _, h := range g.Held() {
		if h.Part == at {
			g.End(h.Instance, why)
		}
	}
}

// complain writes a line to the log, at most one each minute.
func (g *Guard) complain(text string, args ...any) {
	now := g.Clock.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.complained) >= complainEvery {
		g.complained = now
		g.Log.Warn(text, args...)
	}
}
