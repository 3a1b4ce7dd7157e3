package pando

import (
	"fmt"
	"strconv"
	"strings"
)

// Numbers of Linux. The C library keeps the first two real-time signals for itself, so programs
// count from 34.
const (
	signalRealTimeMin = 34
	signalRealTimeMax = 64
)

// signals are the names of the signals of Linux, by their numbers.
var signals = [...]string{1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS",
	8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM",
	16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP", 20: "TSTP", 21: "TTIN", 22: "TTOU", 23: "URG",
	24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH", 29: "IO", 30: "PWR", 31: "SYS"}

// signalOthers are second names of signals.
var signalOthers = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29}

// SignalNumber returns the number of a signal, which is written as images and Compose files write
// it: SIGTERM, TERM, term, 15, SIGRTMIN+3 or RTMAX-1. 0: there is no such signal.
func SignalNumber(s string) int {
	if n, err := strconv.ParseUint(s, 10, 8); err == nil {
		if n < uint64(len(signals)) || n >= signalRealTimeMin && n <= signalRealTimeMax {
			return int(n)
		}
		return 0
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if n, ok := signalOthers[name]; ok {
		return n
	}
	for n, known := range signals {
		if known != "" && known == name {
			return n
		}
	}
	for prefix, from := range map[string]int{"RTMIN": signalRealTimeMin, "RTMAX": signalRealTimeMax} {
		step, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(step, 10, 8)
		sign := map[string]string{"RTMIN": "+", "RTMAX": "-"}[prefix]
		if step != "" && (err != nil || !strings.HasPrefix(step, sign)) {
			return 0
		}
		if at := from + int(n); at >= signalRealTimeMin && at <= signalRealTimeMax {
			return at
		}
	}
	return 0
}

// SignalName returns the name of a signal as a spec has it, such as SIGTERM or SIGRTMIN+3. It
// accepts what SignalNumber does.
func SignalName(s string) (string, error) {
	switch n := SignalNumber(s); {
	case n == 0:
		return "", fmt.Errorf("%w: signal %q: want a signal such as SIGTERM, SIGQUIT, SIGUSR1 or "+
			"SIGRTMIN+3", ErrInvalid, s)
	case n == signalRealTimeMin:
		return "SIGRTMIN", nil
	case n > signalRealTimeMin:
		return "SIGRTMIN+" + strconv.Itoa(n-signalRealTimeMin), nil
	default:
		return "SIG" + signals[n], nil
	}
}
