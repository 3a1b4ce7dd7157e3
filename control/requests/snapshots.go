package requests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/status"
	"pando.run/pando/world"
)

// snapshots carries out the requests about snapshots.
type snapshots struct{ desk *desk }

// snapshotWaitMax bounds the wait for a snapshot: a large program is copied to a slow disk.
const snapshotWaitMax = 5 * time.Minute

// Snapshot implements pando.Operators.
func (c *snapshots) Snapshot(
	ctx context.Context, s pando.ServiceKey, ask pando.SnapshotAsk, by pando.Asker,
) (pando.SnapshotStatus, error) {
	on, h, err := c.desk.visited(s, ask.Instance)
	if err != nil {
		return pando.SnapshotStatus{}, err
	}
	if !h.Freezes {
		return pando.SnapshotStatus{}, fmt.Errorf("%w: host %s makes no snapshots; `pando doctor` there "+
			"prints why", pando.ErrUnsupported, h.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotWaitMax)
	defer cancel()
	sealed, err := c.desk.peers.Snapshot(ctx, h, pando.SnapshotAsk{Instance: on, Plain: ask.Plain})
	st := sealed.SnapshotStatus
	if err == nil && !c.proven(sealed, s) {
		err = fmt.Errorf("%w: host %s stored a snapshot without Pando's proof; look at that host, or put "+
			"it out: pando hosts rm %[2]s", pando.ErrForbidden, h.Name)
	}
	if err != nil {
		return st, err
	}
	now := c.desk.mirror.Clock.Now()
	d := pando.Decision{
		ID: c.desk.mirror.IDs.Sequential(now), Service: s, Instance: on, Kind: pando.DecidedSnapshot, By: by,
		At: now,
		Reason: fmt.Sprintf("%s on %s: %d bytes, and it stood still for %.0f ms", shortDigest(st.Digest),
			h.Name, st.Bytes, st.StoppedSeconds*1000),
		Inputs: map[string]float64{"bytes": float64(st.Bytes), "stopped_seconds": st.StoppedSeconds},
	}
	return st, c.desk.remember(ctx, d)
}

// digestShown is the length of a digest in words, and digestMin the shortest that names one.
const (
	digestShown = 12
	digestMin   = 6
)

// shortDigest returns the first digits of a digest.
func shortDigest(text string) string {
	text = strings.TrimPrefix(text, "sha256:")
	return text[:min(len(text), digestShown)]
}

// Snapshots implements pando.Operators. It asks each host once, all at the same time.
func (c *snapshots) Snapshots(
	ctx context.Context, s pando.ServiceKey,
) ([]pando.SnapshotStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, volumesWaitMax)
	defer cancel()
	out := []pando.SnapshotStatus{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, h := range c.desk.mirror.Hosts() {
		if !h.Freezes {
			continue
		}
		wg.Go(func() {
			all, err := c.desk.peers.Snapshots(ctx, h, s)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				out = append(out, pando.SnapshotStatus{Host: h.Name,
					Missing: status.Unheard(h.Name, err)})
			}
			out = append(out, c.believed(h.Name, s, all)...)
		})
	}
	wg.Wait()
	slices.SortStableFunc(out, func(a, b pando.SnapshotStatus) int { return b.At.Compare(a.At) })
	return out, nil
}

// snapshotsOfMax bounds the list of one host. A host may lie about its number.
const snapshotsOfMax = 10_000

// believed returns the snapshots of a host that Pando has taken. A host gets the key for the proof
// with each of its instances, so it names no snapshot of a service that it never ran.
func (c *snapshots) believed(
	h pando.HostName, s pando.ServiceKey, all []pando.SealedSnapshot,
) (out []pando.SnapshotStatus) {
	forged := 0
	for _, one := range all[:min(len(all), snapshotsOfMax)] {
		switch {
		case one.Host != h || s.Name != "" && one.Service != s:
		case !c.proven(one, one.Service):
			forged++
		default:
			out = append(out, one.SnapshotStatus)
		}
	}
	if forged > 0 {
		c.desk.mirror.Log.Warn("a host lists snapshots that Pando did not take; they are left out", "host", h,
			"snapshots", forged, "next", "look at that host, or put it out: pando hosts rm "+string(h))
	}
	return out
}

// proven reports whether the host of an instance of a service has written a description.
func (c *snapshots) proven(one pando.SealedSnapshot, s pando.ServiceKey) bool {
	if c.desk.vault == nil || one.Service != s {
		return false
	}
	key, err := c.desk.vault.SnapshotSealKey(s, one.Instance, one.Revision)
	return err == nil && key.Proves(one)
}

// find returns the snapshots of a service with a digest, or its beginning. Several hosts may have
// it.
func (c *snapshots) find(
	ctx context.Context, s pando.ServiceKey, digest string,
) ([]pando.SnapshotStatus, error) {
	want := strings.TrimPrefix(digest, "sha256:")
	if len(want) < digestMin {
		return nil, fmt.Errorf("%w: snapshot %q: want at least %d digits of its name; `pando snapshot "+
			"ls %s` lists them", pando.ErrInvalid, digest, digestMin, s.Name)
	}
	all, err := c.Snapshots(ctx, s)
	if err != nil {
		return nil, err
	}
	var found []pando.SnapshotStatus
	silent := ""
	for _, one := range all {
		switch {
		case one.Missing != "":
			silent = ": " + one.Missing
		case strings.HasPrefix(strings.TrimPrefix(one.Digest, "sha256:"), want):
			if len(found) > 0 && found[0].Digest != one.Digest {
				return nil, fmt.Errorf("%w: several snapshots begin with %s; give more digits",
					pando.ErrInvalid, want)
			}
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("snapshot %s of %s: %w; `pando snapshot ls %s` lists them%s", want, s,
			pando.ErrNotFound, s.Name, silent)
	}
	return found, nil
}

// RemoveSnapshot implements pando.Operators.
func (c *snapshots) RemoveSnapshot(
	ctx context.Context, s pando.ServiceKey, digest string, by pando.Asker,
) error {
	found, err := c.find(ctx, s, digest)
	if err != nil {
		return err
	}
	for _, one := range found {
		c.desk.mirror.Mu.Lock()
		h := c.desk.mirror.World.Hosts[one.Host].V
		c.desk.mirror.Mu.Unlock()
		if err := c.desk.peers.DropSnapshot(ctx, h, s, one.Digest); err != nil {
			return err
		}
		c.desk.mirror.Log.Info("a snapshot was deleted", "service", s.String(), "snapshot", one.Digest, "host",
			one.Host, "by", by.Name)
	}
	return nil
}

// RestoreSnapshot implements pando.Operators. The ask is one of an operator, so the budget of the
// service holds.
func (c *snapshots) RestoreSnapshot(
	ctx context.Context, s pando.ServiceKey, digest string, by pando.Asker,
) (pando.Intent, error) {
	found, err := c.find(ctx, s, digest)
	if err != nil {
		return pando.Intent{}, err
	}
	now := c.desk.mirror.Clock.Now()
	i := pando.Intent{ID: pando.IntentID(c.desk.mirror.IDs.Sequential(now)), Service: s,
		Verb: pando.VerbReplicate, By: by, From: found[0].Digest}
	i = i.Become(pando.IntentAsked, now, "restore snapshot "+shortDigest(found[0].Digest)+" of "+
		string(found[0].Instance))
	err = c.desk.change(ctx, func(w *world.World, _ time.Time) (pando.Txn, error) {
		svc, ok := w.Services[s]
		if !ok {
			return pando.Txn{}, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
		}
		if svc.V.Current != found[0].Revision {
			return pando.Txn{}, fmt.Errorf("%w: the snapshot is of revision %d, and %s serves revision %d; "+
				"`pando rollback %s --to %[2]d` first", pando.ErrConflict, found[0].Revision, s,
				svc.V.Current, s.Name)
		}
		if spec, ok := w.SpecOf(s, svc.V.Current); ok && found[0].SpecHash != "" &&
			found[0].SpecHash != spec.Hash() {
			return pando.Txn{}, fmt.Errorf("%w: the snapshot is of another spec, which was revision %d before "+
				"a restore or a removal", pando.ErrConflict, svc.V.Current)
		}
		if err := mayUse(ctx, w, s, svc.V.Current); err != nil {
			return pando.Txn{}, err
		}
		for _, h := range w.Hosts {
			if home := svc.V.Home; (home == "" || home == h.V.Name) && !h.V.Freezes {
				return pando.Txn{}, fmt.Errorf("%w: host %s restores no snapshots; `pando doctor` there "+
					"says why", pando.ErrUnsupported, h.V.Name)
			}
		}
		return pando.Txn{Put: []pando.Stored{i},
			If: []pando.Condition{{Key: s.Key(), Modified: svc.Modified}}}, nil
	})
	if err != nil {
		return pando.Intent{}, fmt.Errorf("restore a snapshot of %s: %w", s, err)
	}
	return c.answered(ctx, i)
}

// answered returns an intent once it is no longer only asked.
func (c *snapshots) answered(ctx context.Context, i pando.Intent) (pando.Intent, error) {
	for {
		c.desk.mirror.Mu.Lock()
		news := c.desk.mirror.Changed
		now, ok := c.desk.mirror.World.Intents[i.ID]
		c.desk.mirror.Mu.Unlock()
		if ok && now.V.State != pando.IntentAsked {
			i = now.V
			break
		}
		select {
		case <-ctx.Done():
			return i, fmt.Errorf("%w: no answer to the restore of %s yet; `pando why %s` shows it",
				pando.ErrUnavailable, i.Service, i.Service.Name)
		case <-news:
		}
	}
	switch i.State {
	case pando.IntentRefused:
		return i, fmt.Errorf("%w: %s; raise `scale.max` in the spec, or `pando scale` down first",
			pando.ErrRefused, i.Reason)
	case pando.IntentFailed:
		return i, fmt.Errorf("%w: %s", pando.ErrNoRoom, i.Reason)
	}
	return i, nil
}
