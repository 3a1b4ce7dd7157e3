package requests

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/status"
	"pando.run/pando/world"
)

// volumes carries out the requests about volumes.
type volumes struct{ desk *desk }

const (
	volumesWaitMax  = 5 * time.Second  // for the list of a host
	measuredWaitMax = 30 * time.Second // for a list with sizes
)

// Volumes implements pando.Operators. It asks each host once, all at the same time.
func (c *volumes) Volumes(
	ctx context.Context, q pando.VolumeQuery,
) ([]pando.KeptVolume, error) {
	wait := volumesWaitMax
	if q.Measure {
		wait = measuredWaitMax
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	out := []pando.KeptVolume{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, h := range c.desk.mirror.Hosts() {
		wg.Go(func() {
			all, err := c.desk.peers.Volumes(ctx, h, q)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				out = append(out, pando.KeptVolume{Host: h.Name,
					Missing: status.Unheard(h.Name, err)})
			}
			for _, v := range all {
				if v.Host == h.Name && q.Wants(v.Service, v.Name) { // a host speaks for its own volumes
					out = append(out, v)
				}
			}
		})
	}
	wg.Wait()
	c.desk.mirror.Mu.Lock()
	defer c.desk.mirror.Mu.Unlock()
	for n, v := range out {
		out[n].Instances = holders(c.desk.mirror.World, v)
	}
	slices.SortStableFunc(out, func(a, b pando.KeptVolume) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Host, b.Host))
	})
	return out, nil
}

// holders returns the instances that have a volume.
func holders(w *world.World, v pando.KeptVolume) (out []pando.InstanceID) {
	services := []pando.ServiceKey{v.Service}
	if v.Part == "shared" {
		services = append(services, borrowers(w, v.Service)...)
	}
	for _, s := range services {
		for _, i := range w.Of(s) {
			spec, _ := w.SpecOf(i.Service, i.Revision)
			part := v.Part == "shared" || v.Part == strconv.Itoa(i.Ordinal)
			if i.Host == v.Host && part && hasVolume(spec, v.Service, v.Name) {
				out = append(out, i.ID)
			}
		}
	}
	return out
}

// borrowers returns the services that have a volume of another one, sorted.
func borrowers(w *world.World, of pando.ServiceKey) (out []pando.ServiceKey) {
	for s, svc := range w.Services {
		spec, _ := w.SpecOf(s, svc.V.Target)
		if s.Tenant == of.Tenant && slices.ContainsFunc(spec.Volumes,
			func(v pando.Volume) bool { return v.Of == of.Name }) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, pando.ServiceKey.Compare)
	return out
}

// hasVolume reports whether the instances of a spec have a volume of a service.
func hasVolume(s pando.Spec, of pando.ServiceKey, name string) bool {
	return slices.ContainsFunc(s.Volumes, func(v pando.Volume) bool {
		return v.Name == name && v.Owner(s.Key()) == of
	})
}

// RemoveVolume implements pando.Operators.
func (c *volumes) RemoveVolume(
	ctx context.Context, s pando.ServiceKey, name string, by pando.Asker,
) error {
	if err := c.unused(s, name); err != nil {
		return err
	}
	all, err := c.Volumes(ctx, pando.VolumeQuery{Service: s})
	if err != nil {
		return err
	}
	on, silent, others := map[pando.HostName]bool{}, "", false
	for _, v := range all {
		switch {
		case v.Missing != "":
			silent = cmp.Or(silent, v.Missing)
		case v.Name == name:
			on[v.Host] = true
		default:
			others = true
		}
	}
	switch {
	case len(on) == 0 && silent != "":
		return fmt.Errorf("%w: volume %s of %s is on no host that answers: %s",
			pando.ErrUnreachable, name, s, silent)
	case len(on) == 0:
		return fmt.Errorf("volume %s of %s: %w; `pando volume ls` lists the volumes", name, s,
			pando.ErrNotFound)
	}
	for _, h := range c.desk.mirror.Hosts() {
		if !on[h.Name] {
			continue
		}
		if err := c.desk.peers.RemoveVolume(ctx, h, s, name); err != nil {
			return err
		}
		c.desk.mirror.Log.Info("a volume was deleted", "service", s.String(), "volume", name, "host", h.Name,
			"by", by.Name)
	}
	return c.desk.change(ctx, func(w *world.World, _ time.Time) (pando.Txn, error) {
		known, ok := w.Volumes[s]
		if ok && !others && silent == "" && (known.V.Roll != nil || on[known.V.Host]) {
			return pando.Txn{If: []pando.Condition{known.If()}, Delete: []pando.Key{known.V.Key()}}, nil
		}
		if silent != "" {
			return pando.Txn{}, nil // a silent host may still have a part
		}
		return forgetSize(w, s, name), nil
	})
}

// forgetSize takes a removed volume from the sizes of its service, or of what that left.
func forgetSize(w *world.World, s pando.ServiceKey, name string) pando.Txn {
	without := func(all []pando.VolumeSize) []pando.VolumeSize {
		return slices.DeleteFunc(slices.Clone(all), func(v pando.VolumeSize) bool { return v.Name == name })
	}
	if svc, there := w.Services[s]; there {
		now := svc.V
		if now.Sizes = without(now.Sizes); len(now.Sizes) == len(svc.V.Sizes) {
			return pando.Txn{}
		}
		return pando.Txn{If: []pando.Condition{svc.If()}, Put: []pando.Stored{now}}
	}
	kept, there := w.Volumes[s]
	now := kept.V
	if now.Sizes = without(now.Sizes); !there || len(now.Sizes) == len(kept.V.Sizes) {
		return pando.Txn{}
	}
	return pando.Txn{If: []pando.Condition{kept.If()}, Put: []pando.Stored{now}}
}

// unused returns an error if a service has a volume in a revision that is in use, or if the host
// with the volumes of a removed service is away.
func (c *volumes) unused(s pando.ServiceKey, name string) error {
	c.desk.mirror.Mu.Lock()
	defer c.desk.mirror.Mu.Unlock()
	svc, there := c.desk.mirror.World.Services[s]
	used := map[int]bool{svc.V.Current: there, svc.V.Target: there}
	for _, i := range c.desk.mirror.World.Of(s) {
		used[i.Revision] = true
	}
	for n := range used {
		if spec, ok := c.desk.mirror.World.SpecOf(s, n); ok && hasVolume(spec, s, name) {
			return fmt.Errorf("%w: %s has volume %s in revision %d; `pando rm %s` first, or deploy it "+
				"without the volume", pando.ErrRefused, s, name, n, s)
		}
	}
	for _, b := range borrowers(c.desk.mirror.World, s) {
		svc := c.desk.mirror.World.Services[b].V
		for _, n := range []int{svc.Current, svc.Target} {
			if spec, ok := c.desk.mirror.World.SpecOf(b, n); ok && hasVolume(spec, s, name) {
				return fmt.Errorf("%w: %s shares volume %s of %s; `pando rm %s` first, or deploy it without "+
					"the volume", pando.ErrRefused, b, name, s, b)
			}
		}
	}
	kept, ok := c.desk.mirror.World.Volumes[s]
	if !ok {
		return nil
	}
	on := []pando.HostName{kept.V.Host}
	if kept.V.Roll != nil {
		on = kept.V.Roll.Hosts
	}
	for _, h := range on {
		if h != "" && !decide.Here(c.desk.mirror.World, h) {
			return fmt.Errorf("%w: host %s has the volumes of %s and is away; `pando hosts` shows it",
				pando.ErrUnreachable, h, s)
		}
	}
	return nil
}
