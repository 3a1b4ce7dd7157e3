// Package sighting keeps on a host which store its agent has seen last.
//
// One file is in the data folder, beside the states. A copy is in the run folder, beside the
// sandboxes, because an agent whose data folder is lost must still recognise a foreign store. It
// never waits for a disk: a sighting that a power cut takes back is only older.
package sighting

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"pando.run/pando"
)

var _ pando.Sightings = Folders{}

// Folders names the two folders of the files.
type Folders struct{ Data, Run string }

const name = "cluster.json"

// Load implements pando.Sightings. The file in the run folder counts only while instances run.
func (f Folders) Load(running bool) (s pando.Sighting, err error) {
	dirs := []string{f.Data}
	if running {
		dirs = append(dirs, f.Run)
	}
	for _, dir := range dirs {
		one, rerr := read(filepath.Join(dir, name))
		err = errors.Join(err, rerr)
		if s.Cluster == "" || one.Generation > s.Generation ||
			one.Generation == s.Generation && one.Revision > s.Revision {
			s = one
		}
	}
	if s.Cluster != "" {
		err = nil // one of the two is enough
	}
	return s, err
}

func read(path string) (s pando.Sighting, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return pando.Sighting{}, fmt.Errorf("read which store this host has seen: %s: %w", path, err)
	}
	return s, nil
}

// Save implements pando.Sightings. A missing folder, which an operator may have deleted, is not
// made again.
func (f Folders) Save(s pando.Sighting) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range []string{f.Run, f.Data} {
		path := filepath.Join(dir, name)
		err := os.WriteFile(path+".new", append(text, '\n'), 0o600)
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("note which store this host has seen: %w", err))
		}
	}
	return errors.Join(errs...)
}
