package pando

import (
	"fmt"
	"time"
)

// Cluster is the store's record of itself. A host compares it with the store that it has seen, so
// that an empty, older or foreign store ends nothing that runs.
type Cluster struct {
	ID         string    `json:"id"`         // random; it stays for the cluster's life
	Generation int       `json:"generation"` // 1 at birth; each restore of a backup raises it
	Born       time.Time `json:"born"`
	Restored   time.Time `json:"restored,omitzero"` // when a backup was restored last
	Backup     time.Time `json:"backup,omitzero"`   // when that backup was made
	Layout     int       `json:"layout,omitempty"`  // of the records that its members write
}

// ClusterKey is the key of the store's record of itself.
const ClusterKey = Root + Key(KindCluster) + "/own"

// Key returns the key of the record.
func (c Cluster) Key() Key { return ClusterKey }

// Sighting is the store that a host has seen last. The zero value matches every store.
type Sighting struct {
	Cluster    string        `json:"cluster"`
	Generation int           `json:"generation"`
	Revision   StoreRevision `json:"revision"` // the newest that it has seen
	// Adopted is the generation to which the host has brought what runs on it.
	Adopted int `json:"adopted"`
	// Adrift names instances that run here without a record since then, separated by spaces.
	Adrift string `json:"adrift,omitempty"`
}

// AdoptionTime is how long after a restore a host may bring records of its instances back.
const AdoptionTime = 10 * time.Minute

// Sightings keeps the sighting of a host, so that it outlives the agent. driver/sighting implements
// it with files.
type Sightings interface {
	// Load returns the newest sighting. running means that instances of a former agent run here.
	Load(running bool) (Sighting, error)
	// Save replaces the sighting.
	Save(s Sighting) error
}

// Accepts returns nil if a store at a revision continues the store that the host has seen, else
// the reason. c is nil for a store without a record of itself.
func (s Sighting) Accepts(c *Cluster, at StoreRevision) error {
	const next = "`pando restore FILE` on the server's host brings the cluster back; until then " +
		"this host keeps what it has"
	switch {
	case s.Cluster == "":
		return nil
	case c == nil:
		return fmt.Errorf("%w: the store is empty or damaged: it has no record of cluster %s; %s",
			ErrFrozen, s.Cluster, next)
	case c.ID != s.Cluster:
		return fmt.Errorf("%w: the store is that of cluster %s, and this host belongs to cluster %s; %s",
			ErrFrozen, c.ID, s.Cluster, next)
	case c.Generation < s.Generation:
		return fmt.Errorf("%w: the store has generation %d, and this host has seen generation %d; %s",
			ErrFrozen, c.Generation, s.Generation, next)
	case c.Generation == s.Generation && at < s.Revision:
		return fmt.Errorf("%w: the store is an older copy: it is at revision %d, "+
			"and this host has seen revision %d; %s", ErrFrozen, at, s.Revision, next)
	}
	return nil
}
