package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// observe writes all observations, in order.
func observe(w io.Writer, all map[string]func() map[string]string) {
	for _, family := range slices.Sorted(maps.Keys(all)) {
		seen := all[family]()
		for _, name := range slices.Sorted(maps.Keys(seen)) {
			fmt.Fprintf(w, "%s/%s\t%s\n", family, name, strings.ReplaceAll(seen[name], "\n", " | "))
		}
	}
}

// text returns the short name of an error, or ok.
func text(err error) string {
	var e syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return e.Error()
	}
	return err.Error()
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return text(err)
	}
	return strings.TrimSpace(string(b))
}

// status returns a field of /proc/self/status.
func status(name string) string {
	for line := range strings.Lines(read("/proc/self/status")) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return "none"
}

// stat returns the kind, the mode and the owner of a file.
func stat(path string) string {
	info, err := os.Lstat(path)
	if err != nil {
		return text(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%s %d:%d", info.Mode(), st.Uid, st.Gid)
}

// list returns the names in a folder.
func list(dir string) string {
	all, err := os.ReadDir(dir)
	if err != nil {
		return text(err)
	}
	var out []string
	for _, e := range all {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// writable tries to make a file in a folder, and to start a program there.
func writable(dir string) string {
	file := filepath.Join(dir, ".probe")
	err := os.WriteFile(file, []byte("x"), 0o600)
	if err == nil {
		err = os.Remove(file)
	}
	return text(err)
}
