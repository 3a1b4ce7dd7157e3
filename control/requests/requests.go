// Package requests carries out the requests of operators. Each request is one transaction on the
// copy of the store, with a decision that explains it.
//
// Each noun has a part. The parts share a desk, which changes the records of services.
package requests

import (
	"pando.run/pando"
	"pando.run/pando/control/mirror"
	"pando.run/pando/control/status"
)

// Config holds what requests read, write and ask.
type Config struct {
	Mirror *mirror.Mirror
	Status *status.Reader
	Peers  pando.Peers
	Most   int         // services of the cluster
	Vault  pando.Vault // nil: the cluster has no secrets
	// Writable reports whether the program of a spec may write to its folder. Nil means unknown.
	Writable func(pando.Spec) bool
	// Taken returns the program of this host that takes packets at a port. Nil means unknown.
	Taken func(pando.HostPort) (owner string, taken bool)
	// Audited gets each deed with its outcome, for a file of this host. Nil: there is none.
	Audited func(pando.Deed) error
}

// Requests carries out the requests of operators. Each part has the requests about one noun.
type Requests struct {
	*desk
	*rebalancer
	*volumes
	*recoveries
	*secrets
	*snapshots
	*moves
	*callers
	*tenants
	*tokens
	*auditor
}

// New returns the requests of a process.
func New(c Config) *Requests {
	o := &desk{
		mirror: c.Mirror, statuses: c.Status, peers: c.Peers, vault: c.Vault, writable: c.Writable,
		taken: c.Taken, creating: make(chan struct{}, 1), most: c.Most,
	}
	audit := &auditor{mirror: c.Mirror, audited: c.Audited}
	return &Requests{
		desk: o, rebalancer: &rebalancer{o}, volumes: &volumes{o}, recoveries: &recoveries{o},
		secrets: &secrets{o, audit}, snapshots: &snapshots{o}, moves: &moves{o}, callers: &callers{o},
		tenants: &tenants{o}, tokens: &tokens{o}, auditor: audit,
	}
}
