package pando

import (
	"errors"
	"strings"
	"testing"
)

func TestASightingAcceptsItsOwnClusterOnly(t *testing.T) {
	seen := Sighting{Cluster: "a", Generation: 2, Revision: 100}
	at := func(id string, generation int) *Cluster {
		return &Cluster{ID: id, Generation: generation}
	}
	for _, c := range []struct {
		seen     Sighting
		store    *Cluster
		revision StoreRevision
		why      string // part of the refusal; "": accepted
	}{
		{Sighting{}, nil, 1, ""},
		{Sighting{}, at("b", 7), 1, ""},
		{seen, at("a", 2), 100, ""},
		{seen, at("a", 2), 101, ""},
		{seen, at("a", 3), 1, ""},
		{seen, at("a", 2), 99, "older copy"},
		{seen, at("a", 1), 900, "generation 1"},
		{seen, at("b", 2), 900, "cluster b"},
		{seen, at("b", 3), 900, "cluster b"},
		{seen, nil, 900, "empty or damaged"},
	} {
		err := c.seen.Accepts(c.store, c.revision)
		switch {
		case c.why == "" && err != nil:
			t.Errorf("%+v at %d is refused: %v", c.store, c.revision, err)
		case c.why == "":
		case !errors.Is(err, ErrFrozen) || !strings.Contains(err.Error(), c.why) ||
			!strings.Contains(err.Error(), "pando restore"):
			t.Errorf("%+v at %d: %v, want %q and the next command", c.store, c.revision, err, c.why)
		}
	}
}
