package bolt

import (
	"os"
	"sync/atomic"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// mappedBytesMax bounds the pages of the file that reads leave in this process. A clone reads the whole file: without a bound
// its size would stay with the agent. The pages remain in the kernel's cache, and a page that is read again costs a minor fault.
// Tests make it less.
var mappedBytesMax int64 = 64 << 20

// mapped counts what reads have mapped since the pages were given back last.
type mapped struct{ bytes atomic.Int64 }

// touched counts a read, and gives the pages of the file back now and then.
func (s *Store) touched(body int) {
	page := int64(os.Getpagesize())
	if n := s.mapped.bytes.Add(page + int64(body)); n >= mappedBytesMax && s.mapped.bytes.CompareAndSwap(n, 0) {
		s.giveBack()
	}
}

// giveBack unmaps the pages of the file. It is advice: a page that is needed comes back by itself.
func (s *Store) giveBack() {
	_ = s.db.View(func(tx *bbolt.Tx) error { // the file is mapped nowhere else meanwhile
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.db.Info().Data, uintptr(tx.Size()), unix.MADV_DONTNEED)
		return nil
	})
}
