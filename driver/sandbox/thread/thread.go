// Package thread runs functions on threads of their own, for what the kernel changes per thread:
// namespaces, rights, cgroups, and the parent whose end is a signal.
//
// It never uses the first thread of the process. Go ends a thread whose goroutine ended locked, but it
// only parks the first one. /proc/self would show what the function did to it, for good.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run calls f on a thread that ends with f, and waits for it.
func Run(f func()) {
	done := make(chan struct{})
	Go(func() {
		defer close(done)
		f()
	})
	<-done
}

// Go calls f on a thread that ends with f.
func Go(f func()) { go own(f) }

// own calls f on this goroutine's thread, or on another one if this is the first thread: no other
// goroutine can get that one meanwhile.
func own(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return // locked, so the runtime ends the thread
	}
	Run(f)
	runtime.UnlockOSThread()
}
