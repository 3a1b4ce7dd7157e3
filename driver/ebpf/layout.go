//go:build !layoutnext

package ebpf

import "pando.run/pando"

// layout is the version of the pinned tables' layout. The build tag layoutnext makes a build of
// layout + 1, to test the upgrade before there is a real one.
const layout = pando.Layout
