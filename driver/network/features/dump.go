package features

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpsMax bounds the attempts to read a list of the kernel. Links come and go with each instance.
const dumpsMax = 20

// Dump reads a list of the kernel, such as its links. A change meanwhile cuts a list, and it is read
// anew.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpsMax {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
