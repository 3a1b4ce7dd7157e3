package bolt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// The file does not shrink while it is open: what a prune frees is used again. A burst of commits would leave its size for
// ever.
const (
	shrinkTurnBytes = 16 << 20  // of one write into the new file
	shrinkLiveMax   = 256 << 20 // more would keep an agent that starts too long: the file stays as it is
)

// shrinkFreeMin is how much must be free in a file that is written anew. Tests make it less.
var shrinkFreeMin int64 = 64 << 20

// sparse says whether more of the file is free than used, and whether the disk has room for the used part.
func (s *Store) sparse() bool {
	st, err := os.Stat(s.path)
	if err != nil {
		return false
	}
	free := int64(s.db.Stats().FreePageN) * int64(s.db.Info().PageSize)
	live := st.Size() - free
	var disk unix.Statfs_t
	if free < shrinkFreeMin || live > free || live > shrinkLiveMax || unix.Statfs(filepath.Dir(s.path), &disk) != nil {
		return false
	}
	return int64(disk.Bavail)*disk.Bsize > 2*live+shrinkTurnBytes
}

func (s *Store) copyPath() string { return s.path + ".new" }

// copyUsed writes the used part into a new file.
func (s *Store) copyUsed() error {
	if err := os.Remove(s.copyPath()); err != nil && !errors.Is(err, os.ErrNotExist) { // of a start that was killed
		return err
	}
	to, err := openFile(s.copyPath())
	if err != nil {
		return err
	}
	if err = errors.Join(bbolt.Compact(to, s.db, shrinkTurnBytes), to.Sync(), to.Close()); err != nil {
		return errors.Join(err, os.Remove(s.copyPath()))
	}
	return nil
}

// takeCopy puts the new file, which is whole and durable, in the place of the old one. The store is closed.
func (s *Store) takeCopy() error {
	if err := os.Rename(s.copyPath(), s.path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(s.path))
	if err != nil {
		return fmt.Errorf("make the new file durable: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}
