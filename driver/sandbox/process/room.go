package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// room is what the files of a program that comes may take on this host.
type room struct {
	bytes int64 // left
	most  int64 // at the beginning
	files int   // left
}

// arrivingFilesMax bounds the files of one program: a few for each of its processes.
const arrivingFilesMax = 16 << 10

// roomIn returns the room in the folder of a program on its way. In memory, the program needs the
// same room again when it runs.
func roomIn(dir string) (room, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return room{}, fmt.Errorf("look for room for a program that moves: %w", err)
	}
	left := int64(fs.Bavail) * fs.Bsize
	if fs.Type != unix.TMPFS_MAGIC {
		left = max(0, left-pando.DiskRoom{Bytes: int64(fs.Blocks) * fs.Bsize}.Floor())
	} else {
		if free := memoryAvailable(); free >= 0 {
			left = min(left, free/2)
		}
	}
	return room{bytes: left, most: left, files: arrivingFilesMax}, nil
}

// take reserves room for one file or for more bytes of it.
func (r *room) take(bytes int64) error {
	if r.files--; bytes > r.bytes || r.files < 0 {
		return fmt.Errorf("%w: the program has more than the %d MiB and %d files that this host has room "+
			"for; choose a host with more free memory, or free some here", pando.ErrRefused, r.most>>20,
			arrivingFilesMax)
	}
	r.bytes -= bytes
	return nil
}

// memoryAvailable returns the memory that new programs can have without swapping, or -1 if the kernel
// does not say.
func memoryAvailable() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemAvailable:" {
			if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				return kib << 10
			}
		}
	}
	return -1
}
