//go:build failpoints

package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"pando.run/pando/test/failpoint"
)

// failpointFile selects a failpoint and a process to kill. "NAME" kills the process that reaches
// the failpoint; "NAME: PID" kills another process.
const failpointFile = "/run/pando/failpoint"

func init() { failpoint.OnHit = killAtFailpoint }

// killAtFailpoint kills at most once, because only one process can remove the file.
func killAtFailpoint(name string) {
	b, err := os.ReadFile(failpointFile)
	if err != nil {
		return
	}
	want, victim, other := strings.Cut(strings.TrimSpace(string(b)), ": ")
	if want != name || os.Remove(failpointFile) != nil {
		return
	}
	pid := os.Getpid()
	if other {
		if pid, err = strconv.Atoi(victim); err != nil {
			panic(err)
		}
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		panic(err)
	}
}
