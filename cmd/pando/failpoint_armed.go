//go:build failpoints

package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"pando.run/pando"
)

// failpointFile says at which failpoint whom to kill: "NAME" for the process that comes there, "NAME: PID" for another.
const failpointFile = "/run/pando/failpoint"

func init() { pando.OnFailpoint = killAtFailpoint }

// killAtFailpoint kills once: who takes the file away is the one that acts.
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
