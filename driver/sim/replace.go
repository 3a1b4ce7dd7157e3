package sim

import (
	"maps"
	"slices"

	"pando.run/pando"
)

// Image is a copy of the records of a registry.
type Image struct {
	id       pando.StoreID
	revision pando.StoreRevision
	records  map[pando.Key]pando.Record
	history  []pando.Batch
	forgot   int
}

// Copy returns an image of the registry, as a copy of the store's files.
func (r *Registry) Copy() Image {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Image{r.id, r.revision, maps.Clone(r.records), slices.Clone(r.history), r.forgot}
}

// Replace puts an image in the place of the registry's records. Its clients notice nothing but the
// answers. The zero image is that of a new, empty store.
func (r *Registry) Replace(i Image) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i.records == nil {
		i.id, i.records = r.id+1000, map[pando.Key]pando.Record{}
	}
	r.id, r.revision, r.keys = i.id, i.revision, keysOf(i.records)
	r.records, r.history, r.forgot = maps.Clone(i.records), slices.Clone(i.history), i.forgot
	for _, w := range r.every {
		r.reread(w)
	}
	r.wakeAll()
}

// Restored returns the image as `pando restore` makes it a store: a new one, in which no host and
// no leader stands, at the cluster's next generation.
func (i Image) Restored(encode func(pando.Cluster) []byte, next pando.Cluster) Image {
	out := Image{i.id + 1, i.revision + 1_000_000, maps.Clone(i.records), nil, 0}
	for k := range out.records {
		if k.Kind() == pando.KindHost || k.Kind() == pando.KindLeader {
			delete(out.records, k)
		}
	}
	was := out.records[pando.ClusterKey]
	out.records[pando.ClusterKey] = pando.Record{Key: pando.ClusterKey, Value: encode(next),
		Created: max(1, was.Created), Modified: out.revision}
	return out
}
