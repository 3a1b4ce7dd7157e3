//go:build !layoutnext

package ebpf

// layout is the version of the pinned tables' layout. The build tag layoutnext makes a build of
// layout + 1, to test the upgrade before there is a real one. In layout 1 a service's table was one
// value of a map with room for 256 services, and one LRU table had all flows. In layout 2 every
// endpoint was on this host.
const layout = 3
