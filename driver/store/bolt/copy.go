package bolt

import (
	"fmt"
	"io"

	"go.etcd.io/bbolt"
)

// Copy writes a consistent copy of the file to w. Writes continue meanwhile.
func (s *Store) Copy(w io.Writer) error {
	err := s.db.View(func(tx *bbolt.Tx) error { _, err := tx.WriteTo(w); return err })
	if err != nil {
		return fmt.Errorf("copy the states in %s: %w", s.path, err)
	}
	return nil
}
