package bolt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// The file does not shrink while it is open: later writes reuse the pages that a prune frees. A
// burst of commits would leave the file large for ever.
const (
	shrinkTurnBytes = 16 << 20  // bytes per write into the new file
	shrinkLiveMax   = 256 << 20 // more live bytes would delay the start of the agent too much
)

// shrinkFreeMin is the least number of free bytes at which the file is rewritten. Tests lower it.
var shrinkFreeMin int64 = 64 << 20

// sparse reports whether more of the file is free than used, and the disk has room for a copy.
func (s *Store) sparse() bool {
	st, err := os.Stat(s.path)
	if err != nil {
		return false
	}
	free := int64(s.db.Stats().FreePageN) * int64(s.db.Info().PageSize)
	live := st.Size() - free
	var disk unix.Statfs_t
	if free < shrinkFreeMin || live > free || live > shrinkLiveMax ||
		unix.Statfs(filepath.Dir(s.path), &disk) != nil {
		return false
	}
	return int64(disk.Bavail)*disk.Bsize > 2*live+shrinkTurnBytes
}

func (s *Store) copyPath() string { return s.path + ".new" }

// copyUsed writes the used part into a new file.
func (s *Store) copyUsed() error {
	// A killed start may have left the new file.
	if err := os.Remove(s.copyPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
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

// takeCopy replaces the file with the new one, which is complete and durable. The store is closed.
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
