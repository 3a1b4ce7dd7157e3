package bolt

import (
	"os"
	"sync/atomic"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// mappedBytesMax bounds the pages of the file that reads leave mapped in this process. A clone
// reads the whole file; without a bound, the agent would keep all of it mapped. The kernel's cache
// keeps the pages, so reading a page again costs one minor fault. Tests lower the bound.
var mappedBytesMax int64 = 64 << 20

// mapped counts the bytes that reads have mapped since the last giveBack.
type mapped struct{ bytes atomic.Int64 }

// touched counts a read and calls giveBack at every mappedBytesMax bytes.
func (s *Store) touched(body int) {
	page := int64(os.Getpagesize())
	n := s.mapped.bytes.Add(page + int64(body))
	if n >= mappedBytesMax && s.mapped.bytes.CompareAndSwap(n, 0) {
		s.giveBack()
	}
}

// giveBack unmaps the pages of the file. This is only advice: the next read of a page maps it
// again.
func (s *Store) giveBack() {
	_ = s.db.View(func(tx *bbolt.Tx) error { // bbolt keeps this mapping during a transaction
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.db.Info().Data, uintptr(tx.Size()), unix.MADV_DONTNEED)
		return nil
	})
}
