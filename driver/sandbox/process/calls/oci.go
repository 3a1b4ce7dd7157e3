package calls

import (
	"golang.org/x/sys/unix"
)

// RuntimeFilter is the filter of a runtime of OCI, as its config.json has it.
type RuntimeFilter struct {
	Default  string        `json:"defaultAction"`
	Syscalls []RuntimeCall `json:"syscalls"`
}

// RuntimeCall is one rule: what a runtime does at some system calls.
type RuntimeCall struct {
	Names  []string          `json:"names"`
	Action string            `json:"action"`
	Errno  uint32            `json:"errnoRet"`
	Args   []RuntimeArgument `json:"args,omitempty"`
}

// RuntimeArgument is a condition of a rule on one argument, in the words of libseccomp.
type RuntimeArgument struct {
	Index    uint   `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo"`
	Op       string `json:"op"`
}

// ForRuntime returns the rules of Filter for a runtime of OCI. A rule of libseccomp compares each argument once, so a
// list of allowed values becomes the values between them.
func ForRuntime() *RuntimeFilter {
	f := &RuntimeFilter{Default: "SCMP_ACT_ALLOW"}
	refuse := func(e unix.Errno, names []string, args ...RuntimeArgument) {
		f.Syscalls = append(f.Syscalls, RuntimeCall{names, "SCMP_ACT_ERRNO", uint32(e), args})
	}
	refuse(unix.EPERM, refused)
	for bit := uint64(1); bit <= namespaces; bit <<= 1 {
		if bit&namespaces != 0 {
			refuse(unix.EPERM, []string{"unshare", "clone"},
				RuntimeArgument{0, bit, bit, "SCMP_CMP_MASKED_EQ"})
		}
	}
	socket := []string{"socket"}
	for _, a := range except(0, families) {
		refuse(unix.EAFNOSUPPORT, socket, a)
	}
	for _, a := range except(2, netlinks) {
		refuse(unix.EAFNOSUPPORT, socket,
			RuntimeArgument{Index: 0, Value: unix.AF_NETLINK, Op: "SCMP_CMP_EQ"}, a)
	}
	refuse(unix.ENOSYS, []string{"clone3"})
	return f
}

// except returns comparisons of an argument that hold for every value outside a list.
func except(index uint, allowed []uint64) (out []RuntimeArgument) {
	most, is := uint64(0), map[uint64]bool{}
	for _, n := range allowed {
		most, is[n] = max(most, n), true
	}
	for n := range most {
		if !is[n] {
			out = append(out, RuntimeArgument{Index: index, Value: n, Op: "SCMP_CMP_EQ"})
		}
	}
	return append(out, RuntimeArgument{Index: index, Value: most, Op: "SCMP_CMP_GT"})
}
