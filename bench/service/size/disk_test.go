//go:build bench

package size

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// diskBytes is about the size of one decision in the store's log.
const diskBytes = 8 << 10

// storeAgainstDisk returns the time of a durable commit of one writer, as a multiple of a raw
// fdatasync of the same size on the same disk.
func storeAgainstDisk(r results) float64 {
	var all []float64
	for round := range rounds {
		l := lead(r)
		l.put(r, records(0, 5))
		commit := perCall(func(n int) error {
			_, err := l.store.Commit(context.Background(), pando.Txn{Put: change(0, n).Put})
			return err
		}, r)
		l.stop()
		f, err := os.Create(filepath.Join(r.TempDir(), "raw"))
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, 0, 256<<20)
		}
		if err != nil {
			r.Fatal(err)
		}
		text := make([]byte, diskBytes)
		raw := perCall(func(int) error {
			if _, err := f.Write(text); err != nil {
				return err
			}
			return unix.Fdatasync(int(f.Fd()))
		}, r)
		f.Close()
		r.add(round, "one durable commit (ms)", commit)
		r.add(round, "one raw fdatasync (ms)", raw)
		all = append(all, commit/raw)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// perCall returns the mean time of a call in milliseconds.
func perCall(do func(n int) error, r results) float64 {
	n, begun := 0, time.Now()
	for ; time.Since(begun) < perRound/2; n++ {
		if err := do(n); err != nil {
			r.Fatal(err)
		}
	}
	return time.Since(begun).Seconds() * 1000 / float64(n)
}
