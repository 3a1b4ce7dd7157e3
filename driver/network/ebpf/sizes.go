package ebpf

// Former builds of this layout made these tables larger, took the memory of all their entries at
// once, or mapped none of it. A pinned one stays so until the next boot.
var formerSizes = []string{"fragments", "links", "opening", "opening6", "policies", "ports",
	"ranks", "scores"}
