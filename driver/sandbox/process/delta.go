package process

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// The memory of a program travels twice: most of it before the stop, as the base, and then the
// pages that the base lacks. A page is found in the base by its content, so the order of pages does
// not matter, and the kernel need not track changes.
const (
	baseFile     = "base"
	pagesFiles   = "pages-*.img" // of CRIU
	deltaSuffix  = ".delta"      // of such a file
	pageBytes    = 4096
	baseBytesMax = 2 << 30 // the rest travels during the stop
	literal      = 1<<32 - 1
)

// base is the memory that has travelled.
type base struct {
	pages []byte // mapped
	seed  maphash.Seed
	at    map[uint64]uint32 // the page with a hash
}

// sendBase copies the memory of processes that run to a file, and sends it.
func sendBase(out *tar.Writer, pids []int, dir string) (*base, error) {
	path := filepath.Join(dir, baseFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	left := int64(baseBytesMax)
	for _, pid := range pids {
		copyMemory(f, pid, &left)
	}
	if err := sendFile(out, path); err != nil {
		return nil, err
	}
	if err := out.Flush(); err != nil {
		return nil, err
	}
	b := &base{seed: maphash.MakeSeed(), at: map[uint64]uint32{}}
	if b.pages, err = mapped(f); err != nil {
		return nil, err
	}
	for n := range uint32(len(b.pages) / pageBytes) {
		b.at[maphash.Bytes(b.seed, b.page(n))] = n
	}
	return b, nil
}

// mapped maps a file into memory. An empty one is nil.
func mapped(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
}

func (b *base) page(n uint32) []byte { return b.pages[int(n)*pageBytes:][:pageBytes] }

// find returns the place of a page in the base: the one at n if it is equal.
func (b *base) find(n uint32, p []byte) uint32 {
	if int(n+1)*pageBytes <= len(b.pages) && bytes.Equal(b.page(n), p) {
		return n
	}
	n, ok := b.at[maphash.Bytes(b.seed, p)]
	if !ok || !bytes.Equal(b.page(n), p) {
		return literal
	}
	return n
}

func (b *base) close() {
	if b != nil && b.pages != nil {
		_ = unix.Munmap(b.pages)
		b.pages = nil
	}
}

// copyMemory appends the private pages of a process, as they are while it runs. A page that is not
// readable is left out: it travels during the stop.
func copyMemory(w io.Writer, pid int, left *int64) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return
	}
	defer memory.Close()
	table, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return
	}
	defer table.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var rights string
		_, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights)
		// A page that the program may not write now may still be its own, after relocation.
		if err == nil && from >= 0 && strings.HasPrefix(rights, "r") && rights[3] == 'p' {
			copyArea(w, memory, table, from, to, left)
		}
	}
}

// areaPages is the number of pages that are read at once.
const areaPages = 256

// copyArea appends the pages of one mapping.
func copyArea(w io.Writer, memory, table *os.File, from, to int64, left *int64) {
	entries, pages := make([]byte, 8*areaPages), make([]byte, areaPages*pageBytes)
	for at := from; at < to && *left > 0; at += areaPages * pageBytes {
		n := min(areaPages, int(to-at)/pageBytes)
		if _, err := table.ReadAt(entries[:8*n], at/pageBytes*8); err != nil {
			return
		}
		for first := 0; first < n; {
			if !isPrivate(entries[8*first:]) {
				first++
				continue
			}
			end := first + 1
			for end < n && isPrivate(entries[8*end:]) {
				end++
			}
			b := pages[:(end-first)*pageBytes]
			if _, err := memory.ReadAt(b, at+int64(first)*pageBytes); err == nil {
				if _, err := w.Write(b); err != nil {
					*left = 0
					return
				}
				*left -= int64(len(b))
			}
			first = end
		}
	}
}

// isPrivate reports whether an entry of /proc/PID/pagemap is that of a page of the process alone.
func isPrivate(entry []byte) bool {
	const present, ofFile = 1 << 63, 1 << 61
	return binary.NativeEndian.Uint64(entry)&(present|ofFile) == present
}

// sendDelta sends a file of pages as references into the base and as the pages that it lacks: 1 if
// it is the only file, the number of pages, a reference for each (literal: it is not there), then
// those pages.
func (b *base) sendDelta(out *tar.Writer, path string, only bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	pages, err := mapped(f)
	if err != nil {
		return err
	}
	if pages == nil || len(pages)%pageBytes != 0 {
		return sendFile(out, path)
	}
	defer func() { _ = unix.Munmap(pages) }()
	refs := make([]byte, 8, 8+len(pages)/pageBytes*4)
	if only {
		refs[0] = 1
	}
	binary.LittleEndian.PutUint32(refs[4:], uint32(len(pages)/pageBytes))
	var rest [][]byte
	for at := 0; at < len(pages); at += pageBytes {
		p := pages[at:][:pageBytes]
		n := b.find(uint32(at/pageBytes), p)
		if n == literal {
			rest = append(rest, p)
		}
		refs = binary.LittleEndian.AppendUint32(refs, n)
	}
	h := &tar.Header{Name: filepath.Base(path) + deltaSuffix, Mode: 0o600,
		Size: int64(len(refs) + len(rest)*pageBytes)}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	if _, err := out.Write(refs); err != nil {
		return err
	}
	for _, p := range rest {
		if _, err := out.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// receiveDelta writes the file of pages that sendDelta sent.
func receiveDelta(path, basePath string, in io.Reader, r *room) (err error) {
	var b base
	f, err := os.Open(basePath)
	if err != nil {
		return err
	}
	defer f.Close()
	if b.pages, err = mapped(f); err != nil {
		return err
	}
	defer b.close()
	var head [8]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(head[4:])
	if n > literal/pageBytes {
		return fmt.Errorf("%w: %d pages", pando.ErrInvalid, n)
	}
	if most := int64(n) * pageBytes; most > r.bytes+int64(len(b.pages)) {
		return r.take(most)
	}
	refs := make([]byte, 4*int(n))
	if _, err := io.ReadFull(in, refs); err != nil {
		return err
	}
	if head[0] == 1 && differing(refs) < int(n)/4 {
		return patch(path, basePath, b.pages, refs, in)
	}
	if err := r.take(copiesIn(refs) * pageBytes); err != nil {
		return err
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for len(refs) > 0 {
		first, run := binary.LittleEndian.Uint32(refs), 1
		for run*4 < len(refs) && isNext(first, run, binary.LittleEndian.Uint32(refs[run*4:])) {
			run++
		}
		refs = refs[4*run:]
		if first == literal {
			_, err = io.CopyN(out, in, int64(run)*pageBytes)
		} else if (int(first)+run)*pageBytes > len(b.pages) {
			err = fmt.Errorf("%w: page %d of the base", pando.ErrInvalid, first)
		} else {
			_, err = out.Write(b.pages[int(first)*pageBytes:][:run*pageBytes])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isNext reports whether a reference continues a run.
func isNext(first uint32, run int, ref uint32) bool {
	if first == literal {
		return ref == literal
	}
	return ref != literal && ref == first+uint32(run)
}

// differing counts the pages that are not at their own place in the base.
func differing(refs []byte) (n int) {
	for at := 0; at < len(refs); at += 4 {
		if binary.LittleEndian.Uint32(refs[at:]) != uint32(at/4) {
			n++
		}
	}
	return n
}

// patch makes the base the file of pages, and writes only the pages that differ. New memory for all
// of them would cost more than the rest of the stop.
func patch(path, basePath string, was, refs []byte, in io.Reader) (err error) {
	from := map[int][]byte{} // pages of the base that are at another place now
	for at := 0; at < len(refs); at += 4 {
		n := binary.LittleEndian.Uint32(refs[at:])
		switch {
		case n == literal:
		case (int(n)+1)*pageBytes > len(was):
			return fmt.Errorf("%w: page %d of the base", pando.ErrInvalid, n)
		case n != uint32(at/4):
			from[at/4] = bytes.Clone(was[int(n)*pageBytes:][:pageBytes])
		}
	}
	out, err := os.OpenFile(basePath, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	page := make([]byte, pageBytes)
	for at := 0; at < len(refs); at += 4 {
		b, ok := from[at/4]
		if binary.LittleEndian.Uint32(refs[at:]) == literal {
			if _, err := io.ReadFull(in, page); err != nil {
				return err
			}
			b, ok = page, true
		}
		if ok {
			if _, err := out.WriteAt(b, int64(at/4)*pageBytes); err != nil {
				return err
			}
		}
	}
	if err := out.Truncate(int64(len(refs)/4) * pageBytes); err != nil {
		return err
	}
	return os.Rename(basePath, path)
}

// copiesIn counts the pages of a delta that are copied from the base.
func copiesIn(refs []byte) (n int64) {
	for at := 0; at < len(refs); at += 4 {
		if binary.LittleEndian.Uint32(refs[at:]) != literal {
			n++
		}
	}
	return n
}
