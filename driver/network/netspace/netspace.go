// Package netspace runs functions in other network namespaces.
package netspace

import (
	"github.com/vishvananda/netns"

	"pando.run/pando/driver/sandbox/thread"
)

// In runs f on a thread in a network namespace. The thread ends with f.
func In(ns netns.NsHandle, f func() error) error {
	var err error
	thread.Run(func() {
		if err = netns.Set(ns); err == nil {
			err = f()
		}
	})
	return err
}

// At runs f on a thread in the network namespace of a file, such as /proc/PID/ns/net.
func At(path string, f func() error) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return In(ns, f)
}
