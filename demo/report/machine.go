package report

import (
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes the machine of a run.
func Machine() []Fact {
	return []Fact{
		{Name: "kernel", Value: kernel()}, {Name: "processors", Value: fmt.Sprint(runtime.NumCPU())},
		{Name: "Go", Value: runtime.Version()},
	}
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	return strings.TrimRight(string(u.Release[:]), "\x00")
}
