//go:build layoutnext

package ebpf

// In the trial layout, an entry of the connection table has its fields in another order, and one
// more field (bpf/pando.h).
const layout = 4
