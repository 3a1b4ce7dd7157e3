package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/function"
	"pando.run/pando/driver/store/journal"
)

// folders names the two folders of a host's daemons, and the files in them.
type folders struct {
	Run  string // sockets; deleted at a reboot
	Data string // the store, states, logs
}

func (f *folders) runFlag(c *cobra.Command) {
	c.Flags().StringVar(&f.Run, "run-dir", "/run/pando", "folder with the sockets of the daemons")
}

func (f *folders) dataFlag(c *cobra.Command) {
	c.Flags().StringVar(&f.Data, "data-dir", "/var/lib/pando",
		"folder with the store, states and logs")
}

// locate makes the folders absolute, because daemons have another working folder.
func (f *folders) locate() error {
	for _, dir := range []*string{&f.Data, &f.Run} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return fmt.Errorf("find the folder %s: %w", *dir, err)
		}
		*dir = abs
	}
	if st, err := os.Stat(f.Data); err == nil && !st.IsDir() {
		return fmt.Errorf("%w: %s is not a folder; choose another with --data-dir",
			pando.ErrInvalid, f.Data)
	}
	return nil
}

func (f folders) trust() string   { return filepath.Join(f.Data, "trust") }
func (f folders) api() string     { return filepath.Join(f.Run, "api.sock") }
func (f folders) store() string   { return filepath.Join(f.Run, "store.sock") }
func (f folders) agent() string   { return filepath.Join(f.Run, "agent.sock") }
func (f folders) control() string { return filepath.Join(f.Run, "control.sock") }
func (f folders) states() string  { return filepath.Join(f.Data, "state.db") }
func (f folders) logs() string    { return filepath.Join(f.Data, "log") }
func (f folders) volumes() string { return filepath.Join(f.Data, "volumes") }
func (f folders) users() string   { return filepath.Join(f.Data, "users") }
func (f folders) images() string  { return filepath.Join(f.Data, "images") }
func (f folders) settingsFile() string {
	return filepath.Join(f.Data, "settings.json")
}
func (f folders) sandboxes() string {
	return filepath.Join(f.Run, "sandbox")
}
func (f folders) functions() string { return filepath.Join(f.Run, function.Folder) }

// mend returns the next step for damaged files.
func (f folders) mend() string {
	return fmt.Sprintf("if its files are damaged, restore %s from a copy, "+
		"or forget everything with `pando down --purge`", f.Data)
}

func (f folders) journals() journal.Folder {
	return journal.Folder(filepath.Join(f.Run, "journal"))
}

// hasStore reports whether this host began a cluster, or has one of its servers.
func (f folders) hasStore() (bool, error) {
	had, err := f.hasEmbedded()
	if had || err != nil {
		return had, err
	}
	return exists(f.storeNote())
}

// hasEmbedded reports whether this host has the files of an embedded store.
func (f folders) hasEmbedded() (bool, error) { return exists(filepath.Join(f.Data, "store")) }

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

const (
	// Space that a new store needs: its first segments and its reserve for a full disk.
	storeBytesBorn = 128 << 20
	storeBytesMin  = 40 << 20 // space below which an existing store refuses writes
)

// hasRoom returns an error if the disk has too little space or too few inodes for the store.
func (f folders) hasRoom() error {
	need := int64(storeBytesMin)
	if had, err := f.hasStore(); err == nil && !had {
		need = storeBytesBorn
	}
	dir := f.Data
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return fmt.Errorf("measure the free space of %s: %w", f.Data, err)
	}
	if free := int64(s.Bavail) * s.Bsize; free < need {
		return fmt.Errorf("%w: %s has %d MiB free and the store needs %d: make room, "+
			"or choose another disk with --data-dir",
			pando.ErrStoreFull, dir, free>>20, need>>20)
	}
	return hasInodes(dir, s)
}

// storeInodesMin is the number of files that a server makes at its start, with a reserve.
const storeInodesMin = 64

// hasInodes returns an error if a disk takes no more files. One that counts none takes any number.
func hasInodes(dir string, s syscall.Statfs_t) error {
	if s.Files == 0 || s.Ffree >= storeInodesMin {
		return nil
	}
	return fmt.Errorf("%w: %s has no inodes left for new files (%d of %d are free; its space does not "+
		"matter): remove files there, or choose another disk with --data-dir", pando.ErrStoreFull, dir,
		s.Ffree, s.Files)
}

// advice returns the next step for a store that does not start: make room, or mend its files.
func (f folders) advice() string {
	if full := f.hasRoom(); full != nil {
		return full.Error()
	}
	return f.mend()
}
