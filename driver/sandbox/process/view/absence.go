package view

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// The kernel reports ENOENT for a program that is there, if its interpreter is not. absence
// finds the file that a program lacks.

// WhyAbsent returns why a program does not start with ENOENT: the file that it leads to and that the
// instance does not see. It returns nil if all of them are there.
func WhyAbsent(p wire.Program, path string) error { return lacking(p, path, "", HopsMax) }

// lacking follows one path. by says who names it: "" for the command.
func lacking(p wire.Program, path, by string, rest int) error {
	file, err := target(path)
	switch {
	case rest == 0:
		return fmt.Errorf("%w: %s leads to more than %d links and interpreters", pando.ErrInvalid, path,
			HopsMax)
	case errors.Is(err, fs.ErrNotExist):
		if file != path {
			by += fmt.Sprintf("%s is a link to %s, ", path, file)
		}
		return fmt.Errorf("%w: %s, which the instance does not see: %s", pando.ErrNotFound,
			strings.TrimSuffix(by, ", "), sight(p, file))
	case err != nil:
		return fmt.Errorf("look at %s: %w", path, err)
	}
	line, is, err := InterpreterOf(file)
	switch {
	case err != nil || is == "":
		return nil // the kernel's own error is the cause
	case strings.HasSuffix(line, "\r"):
		return fmt.Errorf("%w: the lines of %s end with a carriage return, as on Windows, so the kernel "+
			"looks for %q; `sed -i 's/\\r$//' %[2]s` removes them", pando.ErrInvalid, path, is+"\r")
	case !filepath.IsAbs(is):
		return fmt.Errorf("%w: the first line of %s names the interpreter %q; write its whole path, such "+
			"as #!/bin/sh", pando.ErrInvalid, path, is)
	}
	how := fmt.Sprintf("%s needs the interpreter %s, ", path, is)
	if line != "" {
		how = fmt.Sprintf("the first line of %s names %s, ", path, is)
	}
	return lacking(p, is, by+how, rest-1)
}

// target follows the links of a path. It returns the last path, also if that is not there.
func target(path string) (string, error) {
	for range HopsMax {
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return path, err
		}
		to, err := os.Readlink(path)
		if err != nil {
			return path, err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return path, fmt.Errorf("%w: too many links", pando.ErrInvalid)
}

// sight returns how an instance comes to see a file.
func sight(p wire.Program, file string) string {
	if p.Layers != nil {
		return "put it into the image"
	}
	return fmt.Sprintf("where the host has it, add `folders: [%s]` to the spec", PrefixOf(file))
}
