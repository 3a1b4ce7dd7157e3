package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/seed"
	"pando.run/pando/agent/supply"
)

// Times of seeds.
const (
	// seedSecondsMax bounds one snapshot, and the wait for another one of this host before it.
	seedSecondsMax = 60 * time.Second
	// seedStartMax bounds the start of an instance that continues a seed. A later one starts cold.
	seedStartMax = 10 * time.Second
)

// startSandbox starts the sandbox of an instance. With `replicate: {from: snapshot}` it continues
// the seed of its revision. Without a seed, or after one that cannot be continued, the program
// starts.
func (r *Runner) startSandbox(ctx context.Context, g supply.Supplied) (pando.Sandbox, error) {
	s := g.Spec
	if !s.Spec.Seeded() || s.From != "" || s.Instance.Run != nil {
		return g.Start(ctx)
	}
	digest, why := r.host.Seeds.Find(r.Service, seed.VersionOf(s.Instance))
	if digest != "" {
		box, err := r.startFromSeed(ctx, g, digest)
		if err == nil || ctx.Err() != nil {
			return box, err
		}
		why = fmt.Sprintf("its seed %s cannot be continued: %v", seed.ShortDigest(digest), err)
		r.host.Log.Warn("an instance starts cold: its seed cannot be continued", "instance", r.ID,
			"snapshot", digest, "error", err)
		if !errors.Is(err, pando.ErrUnavailable) { // else the server has its key
			r.host.Seeds.Reject(r.Service, seed.VersionOf(s.Instance), digest, why)
		}
	}
	r.start.seeding.began = "the program runs, from its start: " + records.OneLine(why, records.EvidenceBytesMax)
	return g.Start(ctx)
}

// startFromSeed starts the sandbox of an instance that continues a seed.
func (r *Runner) startFromSeed(
	ctx context.Context, g supply.Supplied, digest string,
) (pando.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, seedStartMax)
	defer cancel()
	g, err := g.Continuing(ctx, digest)
	defer func() { g.Done() }()
	if err != nil {
		return nil, err
	}
	box, err := g.Start(ctx)
	if err != nil {
		return nil, err
	}
	r.start.seeding.seeded, r.ready, r.proven = digest, true, true // the program was ready when it was stored
	r.inst.From = digest
	r.start.seeding.began = "it continues the seed " + seed.ShortDigest(digest) + " of its revision"
	r.Events.Send(r.host.Clock.Now(), pando.EventRestored, map[string]string{"snapshot": digest})
	return box, nil
}

// storeSeed stores a ready program as the seed of its revision, before its first connection. It
// returns true until the program runs again.
func (r *Runner) storeSeed(i pando.Instance, spec pando.Spec) bool {
	switch {
	case r.start.seeding.storing:
		return true
	case r.start.seeding.stored || !spec.Seeded() || i.From != "":
		return false
	}
	r.start.seeding.stored = true
	if !r.host.Seeds.BeginTaking(r.Service, seed.VersionOf(i)) {
		return false
	}
	r.start.seeding.storing = true
	r.host.Spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, seedSecondsMax)
		defer cancel()
		st, err := r.host.Agent.TakeSeed(ctx, r, spec.Replicate.Plain,
			func() { r.post(seedTaken{}) })
		r.host.Seeds.EndTaking(r.Service, seed.VersionOf(i), st.Digest, err)
		r.post(seedTaken{})
		reason := fmt.Sprintf("the seed of revision %d on this host is %s: %d bytes, and it stood still "+
			"for %.0f ms; new instances continue it", i.Revision, seed.ShortDigest(st.Digest), st.Bytes,
			st.StoppedSeconds*1000)
		if err != nil {
			reason = fmt.Sprintf("revision %d has no seed on this host, and new instances start cold: %v",
				i.Revision, err)
		}
		r.decide(context.WithoutCancel(ctx), pando.DecidedSnapshot, reason,
			map[string]float64{"bytes": float64(st.Bytes), "stopped_seconds": st.StoppedSeconds})
	})
	return true
}

// rejectSeed rejects the seed of an instance that failed before it was ready.
func (r *Runner) rejectSeed(reason string) {
	if r.start.seeding.seeded == "" || r.inst.Phase != pando.PhaseStarting {
		return
	}
	r.host.Seeds.Reject(r.Service, seed.VersionOf(r.inst), r.start.seeding.seeded, fmt.Sprintf("an instance that continued "+
		"the seed %s failed: %s", seed.ShortDigest(r.start.seeding.seeded), reason))
}
