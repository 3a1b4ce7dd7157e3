// Command probe observes its own container and prints what it sees, a line each: FAMILY/NAME, a tab
// and a value. It runs alone in an image, so it is static and needs no file.
//
// It never prints what differs between two runs of one runtime, such as addresses or times.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mark is a file of the probe's own image. Nowhere else does the probe observe anything: it tries to
// write everywhere.
const mark = "/.probe-image"

// observers are the families of observations.
var observers = map[string]func() map[string]string{
	"pid": pids, "stdio": stdio, "names": names, "environment": environment, "users": users,
	"limits": limits, "capabilities": capabilities, "devices": devices, "mounts": mounts,
	"places": places, "volumes": volumes, "kernel": kernel, "calls": calls, "network": network,
	"cgroups": cgroups, "signals": signals,
}

func main() {
	if _, err := os.Stat(mark); err != nil {
		fmt.Fprintln(os.Stderr, "probe: this is not the image of the probe")
		os.Exit(2)
	}
	words := append(os.Args[1:], "observe")
	switch words[0] {
	case "observe":
		observe(os.Stdout, observers)
	case "exit":
		n, _ := strconv.Atoi(words[1])
		os.Exit(n)
	case "sleep": // without a handler of any signal
		var none [4]uint64
		for sig := uintptr(1); sig <= 31; sig++ {
			unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
		}
		fmt.Println("waits")
		unix.Select(0, nil, nil, nil, &unix.Timeval{Sec: 60})
	case "kill": // itself, by a signal
		n, _ := strconv.Atoi(words[1])
		_ = unix.Kill(os.Getpid(), unix.Signal(n))
		time.Sleep(100 * time.Millisecond)
		os.Exit(99) // the signal had no effect
	case "await": // a signal, and say which one came
		c := make(chan os.Signal, 1)
		signal.Notify(c, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1)
		fmt.Println("waits")
		fmt.Println("got", (<-c).(unix.Signal))
		os.Exit(7)
	case "say":
		fmt.Println(strings.Join(words[1:len(words)-1], "\n"))
	case "write":
		fmt.Println(text(os.WriteFile(words[1], []byte("new"), 0o644)))
	}
}
