package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// makeTries bounds the attempts to make a group while its parents are pruned, 1 ms apart.
const makeTries = 500

// makeFolder makes a folder of a group. Another driver may prune an empty parent between two steps;
// then the kernel finds no parent, or one that is going, or a parent was there and is gone at the
// next look. makeFolder starts again.
func makeFolder(dir string) (err error) {
	for range makeTries {
		err = os.MkdirAll(dir, 0o755)
		gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
		if !gone && !errors.Is(err, fs.ErrExist) {
			break
		}
		pause()
	}
	return err
}

// pause waits 1 ms between two attempts.
func pause() { unix.Nanosleep(&unix.Timespec{Nsec: int64(time.Millisecond)}, nil) }

// put writes an existing file. It creates none: a folder that is not a cgroup would accept any
// file.
func put(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// isFolder reports whether there is a folder at a path.
func isFolder(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}
