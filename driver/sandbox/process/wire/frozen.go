package wire

// Frozen is the report of a shim about a program for a snapshot.
type Frozen struct {
	PID    int    `json:"pid"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Pipe   uint64 `json:"pipe"`
	Users  bool   `json:"users,omitempty"`
	Layers bool   `json:"layers,omitempty"`
	// Output is the number of the shim's descriptor that takes the output of a thawed program.
	Output int `json:"output,omitempty"`
}

// PidFirst is the number of the first program of a sandbox. It is far from those of the threads of
// the shim, so a frozen program finds its own number free in every new sandbox.
const PidFirst = 1000
