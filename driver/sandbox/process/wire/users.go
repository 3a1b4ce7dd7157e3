package wire

import (
	"fmt"
	"slices"
)

// Users are the user and group ids that a service has for itself on this host. The programs of its
// instances are in a user namespace: their id 0 is the first of a range, and the host's own ids do
// not exist for them. Ids from UsersEach on have a second range of the same service: those below
// LargeEach have a place in it by their number, and a few larger ones, which the image or the spec
// names, have the places in front.
type Users struct {
	First uint32   `json:"first"`
	Large []uint32 `json:"large,omitempty"` // from LargeEach on, in order
}

// largeFirst is the first id of the service's second range.
func (u Users) largeFirst() uint32 { return largeFirst + (u.First-UsersFirst)/UsersEach*LargeEach }

// Outside returns the host's id of an id inside. An id that the service does not have is nobody's.
func (u Users) Outside(id uint32) uint32 {
	if id < UsersEach {
		return u.First + id
	}
	if id < LargeEach {
		return u.largeFirst() + id
	}
	if n, found := slices.BinarySearch(u.Large, id); found {
		return u.largeFirst() + uint32(n)
	}
	return Nobody
}

// Inside returns the id inside of one of the host.
func (u Users) Inside(id uint32) uint32 {
	if near := id - u.First; near < UsersEach {
		return near
	}
	at := id - u.largeFirst()
	switch {
	case at < uint32(len(u.Large)):
		return u.Large[at]
	case at >= UsersEach && at < LargeEach:
		return at
	}
	return Nobody
}

// Maps returns the service's ids as the kernel takes them.
func (u Users) Maps() []byte {
	out := fmt.Appendf(nil, "0 %d %d\n%d %d %d\n", u.First, UsersEach, UsersEach,
		u.largeFirst()+UsersEach, LargeEach-UsersEach)
	for n, id := range u.Large {
		out = fmt.Appendf(out, "%d %d 1\n", id, u.largeFirst()+uint32(n))
	}
	return out
}

const (
	UsersEach = 1 << 16 // ids of a service
	// UsersFirst is the first id of the first range. The ids from there to uidFirst are nobody's
	// (systemd's "Users, Groups, UIDs and GIDs"), and all below 2³¹: the kernel lets no group beyond
	// that ping.
	UsersFirst = 1_879_048_192
	// largeFirst is the first id of the second ranges, which are nobody's either.
	largeFirst = 1 << 31
	// LargeEach is the number of ids of a service's second range.
	LargeEach = 1 << 20
)

// Nobody is the id of files without an owner inside.
const Nobody = 65534 // the kernel's overflowuid
