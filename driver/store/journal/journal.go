// Package journal stores the uncommitted writes of instances to their state, one file per instance.
//
// It never waits for a disk. The kernel has a record when Append returns, so the record survives
// the agent's death. A power cut may damage or lose a file, but it also ends the instances.
package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

var (
	_ pando.Journals = Folder("")
	_ pando.Journal  = (*file)(nil)
)

// Folder is the folder of the files. It is made when it is needed.
type Folder string

// Journal implements pando.Journals.
func (d Folder) Journal(i pando.InstanceID) (pando.Journal, error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of journals: %w", err)
	}
	j := &file{path: filepath.Join(string(d), string(i))}
	return j, j.open()
}

// headBytes is the size of a record's head: its length and its CRC-32.
const headBytes = 8

type file struct {
	path string
	f    *os.File
	size int64
}

func (j *file) open() error {
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open a journal: %w", err)
	}
	if j.f != nil {
		j.f.Close()
	}
	j.f = f
	return nil
}

func frame(b, record []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(record)))
	return append(binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(record)), record...)
}

// roomMin is the part of the tmpfs that journals leave to the records of the host's sandboxes: one
// eighth.
const roomMin = 8

// room refuses writes into the last eighth of a tmpfs.
func (j *file) room() error {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(j.f.Fd()), &s); err != nil || s.Type != unix.TMPFS_MAGIC {
		return nil
	}
	if s.Bavail < s.Blocks/roomMin {
		return fmt.Errorf("%w: the rest of %s is reserved for sandboxes: commit the open writes",
			pando.ErrStoreFull, filepath.Dir(j.path))
	}
	return nil
}

// Append implements pando.Journal.
func (j *file) Append(record []byte) error {
	if err := j.room(); err != nil {
		return j.failed("write", err)
	}
	n, err := j.f.Write(frame(make([]byte, 0, headBytes+len(record)), record))
	if err != nil {
		if n > 0 {
			err = errors.Join(err, j.f.Truncate(j.size)) // no record may follow half a record
		}
		return j.failed("write", err)
	}
	j.size += int64(n)
	return nil
}

func (j *file) failed(what string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w: %w", pando.ErrStoreFull, err)
	}
	return fmt.Errorf("%s the journal %s: %w", what, j.path, err)
}

// Records implements pando.Journal.
func (j *file) Records() ([][]byte, error) {
	b, err := os.ReadFile(j.path)
	if err != nil {
		return nil, j.failed("read", err)
	}
	var out [][]byte
	rest := b
	for len(rest) >= headBytes {
		size := int(binary.LittleEndian.Uint32(rest))
		if size == 0 {
			return nil, fmt.Errorf("the journal %s is damaged at byte %d", j.path, len(b)-len(rest))
		}
		if len(rest) < headBytes+size {
			break // its writer died before Append returned
		}
		record := rest[headBytes : headBytes+size]
		if crc32.ChecksumIEEE(record) != binary.LittleEndian.Uint32(rest[4:]) {
			return nil, fmt.Errorf("the journal %s is damaged at byte %d", j.path, len(b)-len(rest))
		}
		out, rest = append(out, record), rest[headBytes+size:]
	}
	j.size = int64(len(b) - len(rest))
	if err := j.f.Truncate(j.size); err != nil {
		return nil, j.failed("mend", err)
	}
	return out, nil
}

// Rewrite implements pando.Journal.
func (j *file) Rewrite(records [][]byte) error {
	if len(records) == 0 {
		if err := j.f.Truncate(0); err != nil {
			return j.failed("empty", err)
		}
		j.size = 0
		return nil
	}
	var b []byte
	for _, r := range records {
		b = frame(b, r)
	}
	next := j.path + ".next"
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return j.failed("rewrite", errors.Join(err, os.Remove(next)))
	}
	if err := os.Rename(next, j.path); err != nil {
		return j.failed("rewrite", err)
	}
	if err := j.open(); err != nil {
		return err
	}
	j.size = int64(len(b))
	return nil
}

// Remove implements pando.Journal.
func (j *file) Remove() error {
	if err := os.Remove(j.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return j.failed("remove", err)
	}
	return j.f.Close()
}
