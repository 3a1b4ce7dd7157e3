//go:build layoutnext

package ebpf

import "pando.run/pando"

// In the trial layout, an entry of the connection table has its fields in another order, and one
// more field (bpf/pando.h).
const layout = pando.Layout + 1
