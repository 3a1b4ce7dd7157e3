package wire

import (
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"
	"pando.run/pando"
)

// Furniture is the shim's argument: everything that it needs to furnish its sandbox.
type Furniture struct {
	Self    string            `json:"self"`    // the folder with the instance's sockets
	Resolv  string            `json:"resolv"`  // its resolv.conf
	Logs    string            `json:"logs"`    // the folder of all logs
	Cgroups string            `json:"cgroups"` // the root of the hierarchies
	Entry   pando.CgroupEntry `json:"entry"`   // into its cgroup
	Hidden  []string          `json:"hidden"`  // folders of the host that are empty in a sandbox
	Layers  string            `json:"layers"`  // the folder of the layers of images; "" for none
	Files   uint64            `json:"files"`   // that a program may open; 0: as its shim
}

// OpenFiles returns the bound of the open files of a program, or nil.
func (f Furniture) OpenFiles() *unix.Rlimit {
	var of unix.Rlimit
	if f.Files == 0 || unix.Getrlimit(unix.RLIMIT_NOFILE, &of) != nil {
		return nil
	}
	of.Cur = min(f.Files, of.Max)
	return &of
}

// Argument returns the furniture as the argument of a shim.
func (f Furniture) Argument() string {
	b, err := json.Marshal(f)
	if err != nil {
		panic(err) // strings always encode
	}
	return string(b)
}

// DescriptorPath returns the path of an open descriptor of this process.
func DescriptorPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
