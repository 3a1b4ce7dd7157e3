package requests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/mirror"
	"pando.run/pando/control/status"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/spec"
	"pando.run/pando/spec/span"
	"pando.run/pando/world"
)

// desk carries out the requests of operators. Each request is one transaction.
type desk struct {
	mirror   *mirror.Mirror
	statuses *status.Reader
	peers    pando.Peers
	vault    pando.Vault // nil: the cluster has no secrets
	// writable reports whether the program of a spec may write to its folder, or is nil.
	writable func(pando.Spec) bool
	// taken returns the program of this host that takes packets at a port, or is nil.
	taken    func(pando.HostPort) (owner string, taken bool)
	creating chan struct{} // full while a new service is written, so that the limit of services holds
	most     int           // services
}

// Deploy implements pando.Operators.
func (c *desk) Deploy(
	ctx context.Context, s pando.Spec, by pando.Asker,
) (pando.ServiceStatus, error) {
	s = s.WithDefaults()
	key := s.Key()
	if err := spec.Check(s); err != nil {
		return pando.ServiceStatus{}, err
	}
	if s.Image.Reference != "" && s.Image.Digest == "" {
		return pando.ServiceStatus{}, fmt.Errorf("%w: deploy %s: this server keeps no images",
			pando.ErrUnsupported, key)
	}
	if s.Bundle.Folder != "" && s.Bundle.Digest == "" {
		return pando.ServiceStatus{}, fmt.Errorf("%w: deploy %s: this server keeps no bundles",
			pando.ErrUnsupported, key)
	}
	c.mirror.Mu.Lock()
	_, exists := c.mirror.World.Services[key]
	c.mirror.Mu.Unlock()
	if !exists { // one new service at a time, because the limit counts stored services
		select {
		case c.creating <- struct{}{}:
			defer func() { <-c.creating }()
		case <-ctx.Done():
			return pando.ServiceStatus{}, fmt.Errorf("deploy %s: %w", key, ctx.Err())
		}
	}
	alone, uneven := "", ""
	err := c.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		if err := w.Frozen(key); err != nil {
			return pando.Txn{}, err
		}
		alone, uneven = oneHost(w, s), status.Unspread(w, s, max(1, s.Scale.Min))
		return c.deploy(ctx, w, pando.Revision{Service: key, Spec: s, At: now, By: by}, "")
	})
	if err != nil {
		return pando.ServiceStatus{}, fmt.Errorf("deploy %s: %w", key, err)
	}
	st, err := c.await(ctx, key, func(st pando.ServiceStatus) bool { return st.VIP4.IsValid() })
	st.Warnings = warnings(s)
	for _, w := range []string{c.twoWriters(s), alone, uneven, status.Unwoken(s)} {
		if w != "" {
			st.Warnings = append(st.Warnings, w)
		}
	}
	return st, err
}

// Admits returns the error with which Deploy would refuse a spec now, or nil. It writes nothing, and
// the image of the spec need not be resolved.
func (c *desk) Admits(ctx context.Context, s pando.Spec, by pando.Asker) error {
	s = s.WithDefaults()
	err := spec.Check(s)
	if err != nil {
		return err
	}
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	if err = c.mirror.World.Frozen(s.Key()); err == nil {
		_, err = c.deploy(ctx, c.mirror.World,
			pando.Revision{Service: s.Key(), Spec: s, At: c.mirror.Clock.Now(), By: by}, "")
	}
	if err != nil {
		return fmt.Errorf("deploy %s: %w", s.Key(), err)
	}
	return nil
}

// warnings returns the risks of a spec that a deploy accepts.
func warnings(s pando.Spec) []string {
	var out []string
	user, _, _ := strings.Cut(s.User, ":")
	root := s.Files().Digest == "" && (user == "0" || user == "root")
	switch {
	case root && s.UsernsMode == pando.UsernsHost:
		out = append(out, fmt.Sprintf("it runs as root of every host (userns_mode: host) and may change "+
			"every file in %s; name another user, or another working_dir", s.WorkingDir))
	case root:
		out = append(out, "it runs as root of users of its own, and not of the host: of the host's "+
			"files it has those that everyone has; userns_mode: host changes that")
	case s.UsernsMode == pando.UsernsHost:
		out = append(out, "its users are those of every host (userns_mode: host)")
	}
	return out
}

// deploy makes r the newest revision of its service. r has no number and no state yet. reason
// follows the number in the decision.
func (c *desk) deploy(
	ctx context.Context, w *world.World, r pando.Revision, reason string,
) (pando.Txn, error) {
	key, by, now := r.Service, r.By, r.At
	old, exists := w.Services[key]
	svc := old.V
	switch {
	case !exists:
		if why := cmp.Or(decide.Crowded(w, key.Tenant, c.most), decide.VIPsOf(w, key.Tenant).UsedUp()); why != "" {
			return pando.Txn{}, fmt.Errorf("%w: %s", pando.ErrRefused, why)
		}
		svc = pando.Service{ServiceKey: key, Phase: pando.ServiceDeploying}
	case svc.Removing:
		return pando.Txn{}, fmt.Errorf(
			"%w: it is being removed; wait until `pando status` no longer shows it", pando.ErrConflict)
	}
	if done, err := settled(w, old.V, old.Modified, key, by); done || err != nil {
		if done && err == nil {
			err = otherSpec(w, r)
		}
		return pando.Txn{}, err
	}
	if err := errors.Join(pando.MayUseHosts(ctx, r.Spec), unset(w, r.Spec)); err != nil {
		return pando.Txn{}, err
	}
	if known, ok := w.SpecOf(key, svc.Target); ok && sameSpec(known, r.Spec) {
		return nothing(c.mirror.IDs, w, key, by, now,
			fmt.Sprintf("revision %d is this spec already", svc.Target)), nil
	}
	if err := c.admit(w, svc, r.Spec, now); err != nil {
		return pando.Txn{}, err
	}
	replaced, unserved := w.Revisions[key][svc.Target].V, svc.Target != svc.Current
	svc.Latest++
	svc = targeted(w, svc, r)
	r.Number, r.State = svc.Latest, pando.RevisionRolling
	d := pando.Decision{
		ID: c.mirror.IDs.Sequential(now), Service: key, Kind: pando.DecidedDeploy, By: by, At: now,
		Reason: fmt.Sprintf("revision %d%s", svc.Latest, reason) + r.Spec.Files().Origin(),
		Inputs: map[string]float64{"revision": float64(svc.Latest)},
	}
	for _, why := range []string{status.Unspread(w, r.Spec, max(1, r.Spec.Scale.Min)), status.Unwoken(r.Spec)} {
		if why != "" {
			d.Reason += "; " + why
		}
	}
	t := pando.Txn{If: []pando.Condition{{Key: key.Key(), Modified: old.Modified}},
		Put: []pando.Stored{svc, r, d}}
	if unserved && replaced.Number > 0 {
		replaced.State = pando.RevisionReplaced
		replaced.Reason = fmt.Sprintf("revision %d came before it served", r.Number)
		t.Put = append(t.Put, replaced)
	}
	return t, nil
}

// admit returns why a service may not have a spec: the hosts cannot run it, other services are in
// its way, or its tenant has no quota left for it.
func (c *desk) admit(w *world.World, svc pando.Service, spec pando.Spec, now time.Time) error {
	if cycle := decide.NeedsCycle(w, spec); cycle != "" {
		return fmt.Errorf("%w: needs: %s: none of them could start; drop one of the needs",
			pando.ErrInvalid, cycle)
	}
	if why := unable(w, spec); why != "" {
		return fmt.Errorf("%w: %s", pando.ErrUnsupported, why)
	}
	if err := c.portTaken(w, spec); err != nil {
		return err
	}
	if err := decide.CheckRuns(w, svc, svc.ServiceKey, spec); err != nil {
		return err
	}
	if why := decide.OverQuota(w, spec, now); why != "" {
		return fmt.Errorf("%w: %s; `pando tenant show %s` shows its use",
			pando.ErrRefused, why, svc.Tenant)
	}
	if why := stuck(w, svc, spec); why != "" {
		return fmt.Errorf("%w: %s", pando.ErrRefused, why)
	}
	return nil
}

// targeted returns the record of a service whose newest revision is r, with the number of instances
// that the rollout must end with.
func targeted(w *world.World, svc pando.Service, r pando.Revision) pando.Service {
	svc.Target, svc.Asked, svc.Trial = svc.Latest, r.At, nil
	svc.Book = decide.BookAfter(svc, r)
	svc.Sizes = pando.KeepSizes(decide.SizesOf(w, r.Service), r.Spec, r.Spec.Scale.Min)
	switch {
	case svc.Current == 0 || svc.Current == svc.Target || r.Spec.IsJob():
		svc.Rolling = 0
		return svc
	case svc.Rolling > 0:
		// The rollout that this one overtakes has the wanted number. Its surge is no part of it.
	default:
		here := decide.OnLiveHosts(w, w.Of(r.Service))
		svc.Rolling = max(1, scale.Capacity(here)-decide.Replacing(here))
	}
	svc.Trial = &pando.Trial{Began: r.At}
	return svc
}

// unable returns why a host of the cluster cannot run a spec, or "". An older agent would ignore
// the words of a newer build.
func unable(w *world.World, s pando.Spec) string {
	needs := []struct {
		asked bool
		has   func(pando.Host) bool
		why   string // of a host
	}{
		{s.Place.Spread != "", func(h pando.Host) bool { return h.Tunnel },
			"place.spread: host %s exchanges no connections with other hosts; upgrade pando there, " +
				"start it with --listen, or leave spread out"},
		{s.Bundle.Folder != "", func(h pando.Host) bool { return h.Bundles },
			"bundle: host %s has an older pando without bundles; upgrade pando there, " +
				"or leave bundle out"},
		{s.IsJob(), func(h pando.Host) bool { return h.Runs },
			"kind: host %s has an older pando without jobs: upgrade pando there"},
		{len(s.StoredSecrets) > 0, func(h pando.Host) bool { return h.Secrets },
			"secrets: host %s has an older pando without secrets of the store: upgrade pando there"},
		{len(s.Configs)+len(s.ExtraHosts) > 0, func(h pando.Host) bool { return h.Configs },
			"configs: host %s has an older pando without configs and extra_hosts: upgrade pando there"},
		{len(s.Volumes)+len(s.Tmpfs) > 0 || s.ReadOnly,
			func(h pando.Host) bool { return h.Volumes },
			"volumes: host %s lacks them, tmpfs and read_only: upgrade pando there"},
		{len(s.Endpoints) > 0, func(h pando.Host) bool { return h.Externals },
			"endpoints: host %s has an older pando without them: upgrade pando there"},
		{len(pando.HostPorts(s.Ports)) > 0, func(h pando.Host) bool { return h.Fronts },
			"publish.host: host %s does not serve at its own address: it has an older pando, or steers by " +
				"Open vSwitch; upgrade pando there, or start it with --steer ebpf"},
		{s.IsVM(), func(h pando.Host) bool { return h.VMs },
			"kind: host %s has an older pando without virtual machines: upgrade pando there"},
		{len(s.Grants) > 0, func(h pando.Host) bool { return h.Grants },
			"grants: host %s has an older pando that gives none: upgrade pando there"},
		{s.Stateful(), func(h pando.Host) bool { return h.Ordinals },
			"kind: host %s has an older pando without stateful services: upgrade pando there"},
		{len(s.Binds()) > 0, func(h pando.Host) bool { return h.Binds },
			"folders: host %s has an older pando that shows folders at their own path and in no image; " +
				"upgrade pando there"},
	}
	for _, name := range slices.Sorted(maps.Keys(w.Hosts)) {
		for _, n := range needs {
			if n.asked && !n.has(w.Hosts[name].V) {
				return fmt.Sprintf(n.why, name)
			}
		}
	}
	return ""
}

// stuck returns why a service that runs cannot keep the rule of placement of a new spec, or "".
func stuck(w *world.World, svc pando.Service, s pando.Spec) string {
	host, here := w.Hosts[svc.Home]
	host.V.Name = svc.Home
	why := lifecycle.Unfit(host.V, pando.Place{Only: s.Place.Only}, nil, decide.Lacks(w, s))
	if !here || why == "" || s.Place.Spread != "" || !w.HostsOf(svc.ServiceKey)[svc.Home] {
		return ""
	}
	return fmt.Sprintf("it runs on %s, which %s, and a move would break its connections; give that "+
		"host the label (`pando up --label`) or allow the grant, or remove the service first "+
		"(`pando rm %s`)",
		svc.Home, why, svc.ServiceKey)
}

// settled reports whether a request was done before. It refuses a request that was made for another
// version.
func settled(w *world.World, svc pando.Service, version pando.StoreRevision, key pando.ServiceKey,
	by pando.Asker) (bool, error) {
	if before, ok := asked(w, key, by); ok {
		if before.By.Digest != by.Digest {
			return true, fmt.Errorf("%s: %w %q, which is recorded as: %s; send it with a new one", key,
				pando.ErrKeyReused, by.Request, status.Cut(before.Reason))
		}
		return true, nil
	}
	switch {
	case by.Seen == 0 || by.Seen == version:
		return false, nil
	case version == 0:
		return false, fmt.Errorf("%w: version %d of %s was asked for, and it is not there",
			pando.ErrConflict, by.Seen, key)
	}
	return false, fmt.Errorf("%w: %s is %s at version %d and was at %d when you looked: look again",
		pando.ErrConflict, key, svc.Phase, version, by.Seen)
}

// asked returns the decision that a request made when it came before.
func asked(w *world.World, key pando.ServiceKey, by pando.Asker) (pando.Decision, bool) {
	if by.Request == "" {
		return pando.Decision{}, false
	}
	all := w.DecisionsOf(key)
	n := slices.IndexFunc(all, func(d pando.Decision) bool { return d.By.Request == by.Request })
	if n < 0 {
		return pando.Decision{}, false
	}
	return all[n], true
}

// otherSpec returns an error if a deploy that came before had another spec. The digest of a deploy
// says nothing of its body, because a body has environments.
func otherSpec(w *world.World, r pando.Revision) error {
	for n := range w.Revisions[r.Service] {
		was := w.Revisions[r.Service][n].V
		if was.By.Request == r.By.Request && !sameSpec(asSent(was.Spec), asSent(r.Spec)) {
			return fmt.Errorf("%w %q, and made revision %d of another spec; send it with a new one",
				pando.ErrKeyReused, r.By.Request, was.Number)
		}
	}
	return nil
}

// asSent returns a spec without what the server found out about its files: a tag may have moved.
func asSent(s pando.Spec) pando.Spec {
	s.Image.Digest, s.Image.Host, s.Image.Gave = "", "", nil
	s.Bundle.Digest, s.Bundle.Host = "", ""
	return s
}

// nothingsKept is how many requests without an effect are remembered. A deploy every minute must
// not push out requests that had one.
const nothingsKept = 20

// nothing records a request that needed no change, so that a later repetition changes nothing.
func nothing(
	ids pando.IDs, w *world.World, key pando.ServiceKey, by pando.Asker, now time.Time, reason string,
) pando.Txn {
	if by.Request == "" {
		return pando.Txn{}
	}
	t := pando.Txn{Put: []pando.Stored{pando.Decision{
		ID: ids.Sequential(now), Service: key, Kind: pando.DecidedNothing, By: by, Reason: reason,
		At: now,
	}}}
	before := slices.DeleteFunc(w.DecisionsOf(key),
		func(d pando.Decision) bool { return d.Kind != pando.DecidedNothing })
	for _, d := range before[:max(0, len(before)-nothingsKept+1)] {
		t.Delete = append(t.Delete, d.Key())
	}
	return t
}

func sameSpec(a, b pando.Spec) bool {
	// An older build without other orders wrote the spec.
	a.Rollout.Order = cmp.Or(a.Rollout.Order, pando.StartFirst)
	a.Image.Inside = b.Image.Inside // of the asker, and not of the program
	x, errA := world.Encode(a)
	y, errB := world.Encode(b)
	return errA == nil && errB == nil && reflect.DeepEqual(x, y)
}

// Remove implements pando.Operators.
func (c *desk) Remove(
	ctx context.Context, s pando.ServiceKey, purge bool, by pando.Asker,
) error {
	return c.edit(ctx, s, by, func(svc *pando.Service, now time.Time) (*pando.Decision, error) {
		svc.Removing, svc.Purge = true, purge || svc.Purge
		return &pando.Decision{Kind: pando.DecidedRemove, By: by, Reason: "asked to go"}, nil
	})
}

// Pin implements pando.Operators.
func (c *desk) Pin(
	ctx context.Context, s pando.ServiceKey, n int, keep time.Duration, by pando.Asker,
) (pando.ServiceStatus, error) {
	if n < 0 || n > pando.EndpointsMax {
		return pando.ServiceStatus{}, fmt.Errorf("%w: %d instances: want 0 to %d",
			pando.ErrInvalid, n, pando.EndpointsMax)
	}
	if spec, ok := c.mirror.NewestSpec(s); ok && spec.Single() && n > 1 {
		return pando.ServiceStatus{}, fmt.Errorf("%w: %s is one instance at most (scale.max 1, "+
			"rollout.order stop-first in its spec); raise scale.max there for more", pando.ErrRefused, s)
	}
	err := c.edit(ctx, s, by, func(svc *pando.Service, now time.Time) (*pando.Decision, error) {
		if why := decide.PinBeyondQuota(c.mirror.World, s, n, now); why != "" {
			return nil, fmt.Errorf("%w: %s", pando.ErrRefused, why)
		}
		before := scale.Capacity(c.mirror.World.Of(s))
		if svc.Pin.Holds(now) {
			before = svc.Pin.Before
		}
		svc.Pin = &pando.Pin{Instances: n, By: by, Before: before}
		reason := fmt.Sprintf("%d instances until further notice", n)
		if keep > 0 {
			svc.Pin.Until = now.Add(keep)
			reason = fmt.Sprintf("%d instances for %s", n, span.Text(keep))
		}
		return &pando.Decision{Kind: pando.DecidedPin, By: by, Reason: reason,
			Inputs: map[string]float64{"instances": float64(n)}}, nil
	})
	if err != nil {
		return pando.ServiceStatus{}, err
	}
	return c.statuses.Service(ctx, s)
}

// Unpin implements pando.Operators.
func (c *desk) Unpin(
	ctx context.Context, s pando.ServiceKey, by pando.Asker,
) (pando.ServiceStatus, error) {
	err := c.edit(ctx, s, by, func(svc *pando.Service, now time.Time) (*pando.Decision, error) {
		if !svc.Pin.Holds(now) {
			return nil, nil
		}
		pin := *svc.Pin
		pin.Until = now // the loop lifts it and drains the instances that it added
		svc.Pin = &pin
		return &pando.Decision{
			Kind: pando.DecidedUnpin, By: by, Reason: "scaling is automatic again",
		}, nil
	})
	if err != nil {
		return pando.ServiceStatus{}, err
	}
	return c.statuses.Service(ctx, s)
}

// edit changes the record of one service, with a decision that explains the change.
func (c *desk) edit(ctx context.Context, s pando.ServiceKey, by pando.Asker,
	f func(*pando.Service, time.Time) (*pando.Decision, error)) error {
	return c.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		old, ok := w.Services[s]
		if err := w.Frozen(s); err != nil {
			return pando.Txn{}, fmt.Errorf("service %s: %w", s, err)
		}
		if !ok {
			return pando.Txn{}, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
		}
		if done, err := settled(w, old.V, old.Modified, s, by); done || err != nil {
			return pando.Txn{}, err
		}
		svc := old.V
		d, err := f(&svc, now)
		if err != nil {
			return pando.Txn{}, err
		}
		if d == nil {
			return nothing(c.mirror.IDs, w, s, by, now, "it was so already"), nil
		}
		d.ID, d.Service, d.At = c.mirror.IDs.Sequential(now), s, now
		return pando.Txn{If: []pando.Condition{old.If()}, Put: []pando.Stored{svc, *d}}, nil
	})
}

// change commits the transaction of f. After a conflict it waits for newer records and tries again.
func (c *desk) change(
	ctx context.Context, f func(*world.World, time.Time) (pando.Txn, error),
) error {
	for n := 0; ; n++ {
		c.mirror.Mu.Lock()
		news := c.mirror.Changed
		t, err := f(c.mirror.World, c.mirror.Clock.Now())
		if err == nil {
			err = c.mirror.World.Spares(t)
		}
		c.mirror.Mu.Unlock()
		if err != nil || len(t.Put)+len(t.Delete) == 0 {
			return err
		}
		written := pando.Waiting(ctx, c.mirror.Clock, "the store")
		at, err := c.mirror.CommitSurely(ctx, t)
		written()
		c.mirror.NoteOutcome(err)
		if err == nil {
			c.mirror.Mu.Lock()
			c.mirror.Took(t, at)
			c.mirror.Wake()
			c.mirror.Mu.Unlock()
			return nil
		}
		if !errors.Is(err, pando.ErrConflict) || n == mirror.Attempts {
			return err
		}
		timer, stop := c.mirror.Clock.After(50 * time.Millisecond)
		select {
		case <-ctx.Done():
		case <-news:
		case <-timer:
		}
		stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// await waits until want accepts the status of a service.
func (c *desk) await(
	ctx context.Context, s pando.ServiceKey, want func(pando.ServiceStatus) bool,
) (pando.ServiceStatus, error) {
	for {
		c.mirror.Mu.Lock()
		news := c.mirror.Changed
		st, ok := c.statuses.Of(s)
		c.mirror.Mu.Unlock()
		if ok && want(st) {
			return st, nil
		}
		select {
		case <-ctx.Done():
			return st, fmt.Errorf("service %s: %w", s, ctx.Err())
		case <-news:
		}
	}
}

// Why implements pando.Operators.
func (c *desk) Why(_ context.Context, s pando.ServiceKey, most int) ([]pando.Because, error) {
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	if _, ok := c.mirror.World.Services[s]; !ok {
		return nil, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
	}
	out, changed := []pando.Because{}, map[pando.Key]pando.StoreRevision{}
	for _, i := range c.mirror.World.IntentsOf(s) {
		v := c.mirror.World.Intents[i.ID]
		changed[v.V.Key()] = v.Modified
		out = append(out, pando.Because{At: i.Changed(), Intent: &i, Created: c.mirror.World.CreatedOf(i.Key())})
	}
	for _, d := range c.mirror.World.DecisionsOf(s) {
		at := c.mirror.World.CreatedOf(d.Key())
		changed[d.Key()] = at
		out = append(out, pando.Because{At: d.At, Decision: &d, Created: at})
	}
	of := func(b pando.Because) pando.StoreRevision {
		if b.Intent != nil {
			return changed[b.Intent.Key()]
		}
		return changed[b.Decision.Key()]
	}
	slices.SortStableFunc(out, func(a, b pando.Because) int { return cmp.Compare(of(a), of(b)) })
	if most > 0 && len(out) > most {
		out = out[len(out)-most:]
	}
	return out, nil
}
