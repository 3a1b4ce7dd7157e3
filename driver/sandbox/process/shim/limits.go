package shim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// limitsOf are the numbers of the bounds of a process, by the words of a spec.
var limitsOf = map[string]int{
	"core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK,
	"msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE, "nofile": unix.RLIMIT_NOFILE,
	"nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
	"rttime": rlimitRTTime, "sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

const rlimitRTTime = 15 // the package of system calls does not name it

// limit is one bound of a program.
type limit struct {
	name  string
	which uintptr
	bound unix.Rlimit
}

// within returns the bounds of a spec as the kernel takes them, in order: none exceeds the bound that
// this process itself has.
func within(words map[string]string) (out []limit, err error) {
	for _, name := range slices.Sorted(maps.Keys(words)) {
		soft, hard, err := pando.ReadUlimit(words[name])
		which, known := limitsOf[name]
		if err != nil || !known {
			return nil, fmt.Errorf("%w: ulimits.%s: %q", pando.ErrInvalid, name, words[name])
		}
		var own unix.Rlimit
		if err := unix.Getrlimit(which, &own); err != nil {
			return nil, fmt.Errorf("read the bound %s of this host: %w", name, err)
		}
		out = append(out, limit{name, uintptr(which), unix.Rlimit{Cur: min(soft, own.Max),
			Max: min(hard, own.Max)}})
	}
	return out, nil
}

// maskOf returns a umask in octal digits as a number, or -1 for "".
func maskOf(digits string) (int, error) {
	if digits == "" {
		return -1, nil
	}
	n, err := strconv.ParseUint(digits, 8, 9)
	if err != nil {
		return -1, fmt.Errorf("%w: umask: %q", pando.ErrInvalid, digits)
	}
	return int(n), nil
}

// setKernel sets the settings of the kernel that the sandbox has for itself. The /proc of the sandbox
// is read-only there, so it uses another one that has no place.
func setKernel(words map[string]string) error {
	if len(words) == 0 {
		return nil
	}
	proc, err := openProc()
	if err != nil {
		return fmt.Errorf("set the sysctls of an instance: %w", err)
	}
	defer unix.Close(proc)
	for _, name := range slices.Sorted(maps.Keys(words)) {
		fd, err := unix.Openat(proc, "sys/"+strings.ReplaceAll(name, ".", "/"),
			unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = unix.Write(fd, []byte(words[name]))
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("%w: sysctls.%s: %w: leave it out, or set it on the host",
				pando.ErrInvalid, name, err)
		}
	}
	return nil
}

// openProc returns a /proc of this process's namespaces without a place among the files.
func openProc() (int, error) {
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
}
