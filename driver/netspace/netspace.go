// Package netspace runs functions in other network namespaces.
package netspace

import (
	"runtime"

	"github.com/vishvananda/netns"
)

// In runs f on a thread in a network namespace.
func In(ns netns.NsHandle, f func() error) error {
	done := make(chan error)
	go func() {
		// The thread ends with the goroutine: it never runs outside the namespace again.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
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
