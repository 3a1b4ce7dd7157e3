package shim

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
	"pando.run/pando/driver/sandbox/process/calls"
)

// callFilter returns the filter in the form of the kernel.
var callFilter = sync.OnceValues(func() (*unix.SockFprog, error) {
	rules, err := calls.Filter()
	if err != nil {
		return nil, fmt.Errorf("make the filter of system calls: %w", err)
	}
	code := make([]unix.SockFilter, len(rules))
	for i, r := range rules {
		code[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}, nil
})

// filterCalls refuses system calls to this thread and to all that it starts, for good. The thread
// has no_new_privs.
func filterCalls() error {
	program, err := callFilter()
	if err != nil {
		return err
	}
	_, _, failed := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
		uintptr(unsafe.Pointer(program)))
	if failed != 0 {
		return fmt.Errorf("refuse system calls (needs seccomp in the kernel): %w", failed)
	}
	return nil
}
