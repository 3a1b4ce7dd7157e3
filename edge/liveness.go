package edge

import "pando.run/pando"

// Liveness finds dead hosts within a second by probes between agents. driver/cluster/liveness implements
// it. Its verdict only stops new flows to a host. Only the end of a lease starts instances
// elsewhere.
type Liveness interface {
	// Watch sets the other hosts to probe. Packets from all other addresses are dropped.
	Watch(hosts []pando.Host)
	// Dead returns the hosts that the probes find dead, sorted. If only its agent has ended, a
	// host is not among them: its kernel steers on.
	Dead() []pando.HostName
	// Cut returns the hosts that live, as other hosts say, and that answer this host by no way of
	// its own, sorted.
	Cut() []pando.HostName
	// Changed returns a channel that is closed at the next change of Dead or Cut.
	Changed() <-chan struct{}
	// Forged returns the number of packets and connections that no member sent. All are dropped.
	Forged() uint64
}
