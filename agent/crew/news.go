package crew

import (
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
)

// News is one commit as this host reads it, in one pass over its records.
type News struct {
	Endpoints bool // of a service changed
	Hosts     bool // a host or a member joined, changed or left
	Services  map[pando.ServiceKey]*Change
}

// Change is the part of a commit that concerns one service.
type Change struct {
	Instances []pando.InstanceID // in the order of the commit
	Service   bool               // its record
	Revision  bool               // one of its revisions
	head      bool               // its main
	Keeper    bool               // the hosts of its state
	Endpoints bool               // its endpoints, which bring its record
}

// Digest reads the records of one commit.
func Digest(records []pando.Record) News {
	n := News{Services: map[pando.ServiceKey]*Change{}}
	for _, r := range records {
		s, ok := r.Key.Service()
		if !ok {
			n.Hosts = n.Hosts || r.Key.Kind() == pando.KindHost || r.Key.Kind() == pando.KindMember
			continue
		}
		c := n.Services[s]
		if c == nil {
			c = &Change{}
			n.Services[s] = c
		}
		switch r.Key.Kind() {
		case pando.KindInstance:
			c.Instances = append(c.Instances, instanceOf(r.Key))
		case pando.KindService:
			c.Service = true
		case pando.KindEndpoints:
			c.Endpoints, c.Service, n.Endpoints = true, true, true
		case pando.KindRevision:
			c.Revision = true
		case pando.KindHead:
			c.head = true
		case pando.KindKeeper:
			c.Keeper = true
		}
	}
	return n
}

// Names returns the services of a commit in order.
func (n News) Names() []pando.ServiceKey {
	return slices.SortedFunc(maps.Keys(n.Services), pando.ServiceKey.Compare)
}

// instanceOf returns the instance in the key of a record, which is the last part of the key.
func instanceOf(k pando.Key) pando.InstanceID {
	return pando.InstanceID(k[strings.LastIndexByte(string(k), '/')+1:])
}
