//go:build !layoutnext

package ebpf

import "pando.run/pando"

// layout is that of the pinned tables. The build tag layoutnext makes a build of layout + 1, with which the upgrade is
// tested before there is a real one.
const layout = pando.Layout
