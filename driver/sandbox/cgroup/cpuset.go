package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pando.run/pando"
)

// cpusetController is the hierarchy of v1 that chooses processors. Only groups of a spec with a
// choice have a folder there: each level of it needs its own list.
const cpusetController = "cpuset"

// chooseProcessors limits a group to processors of the host, such as 0-3,7. It returns the folder of a
// group of v1.
func chooseProcessors(root, name string, v2 bool, processors string) (folder string, err error) {
	own := filepath.Join(root, "cpuset.cpus.effective")
	if v2 {
		err = chooseInV2(root, name, processors)
	} else {
		folder, err = chooseInV1(filepath.Join(root, cpusetController), name, processors)
		own = filepath.Join(root, cpusetController, "cpuset.cpus")
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return folder, fmt.Errorf("%w: this machine has no cpuset controller at %s: mount it, or leave "+
			"`resources.cpuset` out", pando.ErrNotFound, root)
	case err != nil:
		all, _ := os.ReadFile(own)
		return folder, fmt.Errorf("%w: resources.cpuset: %s: this host has the processors %s: %w",
			pando.ErrInvalid, processors, strings.TrimSpace(string(all)), err)
	}
	return folder, nil
}

func chooseInV2(dir, name, processors string) error {
	for part := range strings.SplitSeq(name, "/") {
		if err := put(filepath.Join(dir, "cgroup.subtree_control"), "+cpuset"); err != nil {
			return err
		}
		dir = filepath.Join(dir, part)
	}
	return put(filepath.Join(dir, "cpuset.cpus"), processors)
}

func chooseInV1(dir, name, processors string) (folder string, err error) {
	if _, err := os.Stat(filepath.Join(dir, "cpuset.cpus")); err != nil {
		return "", err
	}
	for part := range strings.SplitSeq(name, "/") {
		from := dir
		dir = filepath.Join(dir, part)
		if err := inherit(from, dir); err != nil {
			return dir, err
		}
	}
	return dir, put(filepath.Join(dir, "cpuset.cpus"), processors)
}

// inherit makes a group of v1 with the processors and the memory of its parent. A new group has none
// of either. Another driver may prune a parent between two steps.
func inherit(from, dir string) error {
	if err := makeFolder(dir); err != nil {
		return err
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if own, err := os.ReadFile(filepath.Join(dir, name)); err != nil || len(own) > 1 {
			continue // it has its list
		}
		list, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = put(filepath.Join(dir, name), string(list))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
