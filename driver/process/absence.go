package process

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pando.run/pando"
)

// The kernel reports ENOENT for a program that is there, if its interpreter is not. absence
// finds the file that a program lacks.

// noProgram is in the error of a program that is not there.
const noProgram = "there is no program"

// hopsMax bounds the links and interpreters that are followed, as the kernel does.
const hopsMax = 40

// absence returns why a program does not start with ENOENT: the file that it leads to and that the
// instance does not see. It returns nil if all of them are there.
func absence(p program, path string) error { return lacking(p, path, "", hopsMax) }

// lacking follows one path. by says who names it: "" for the command.
func lacking(p program, path, by string, rest int) error {
	file, err := target(path)
	switch {
	case rest == 0:
		return fmt.Errorf("%w: %s leads to more than %d links and interpreters", pando.ErrInvalid, path,
			hopsMax)
	case errors.Is(err, fs.ErrNotExist):
		if file != path {
			by += fmt.Sprintf("%s is a link to %s, ", path, file)
		}
		return fmt.Errorf("%w: %s, which the instance does not see: %s", pando.ErrNotFound,
			strings.TrimSuffix(by, ", "), p.sight(file))
	case err != nil:
		return fmt.Errorf("look at %s: %w", path, err)
	}
	line, is, err := interpreterOf(file)
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
	for range hopsMax {
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

// interpreterOf returns the interpreter of a program: the one in the first line of a script, with that
// line, or the one in the head of a binary.
func interpreterOf(path string) (line, interpreter string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	text, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	if by := interpreterIn(strings.NewReader(string(text))); by != "" {
		return strings.TrimSuffix(string(text), "\n"), by, nil
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return "", "", err
	}
	for _, part := range e.Progs {
		if part.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(io.LimitReader(part.Open(), 4096))
		return "", strings.TrimRight(string(name), "\x00"), err
	}
	return "", "", nil
}

// unseen adds to the error of a start that this host has the program which an instance does not see.
// It runs in the agent, which sees the host's files.
func unseen(p program, err error) error {
	if err == nil || !strings.Contains(err.Error(), noProgram) || p.Layers != nil || p.Bundle != nil {
		return err // the shim's errors come as text
	}
	at, there := lookPath(p)
	if there != nil || p.mounts(at) || slices.ContainsFunc(p.Show, func(s shown) bool {
		return below(s.Path, at)
	}) {
		return err
	}
	return fmt.Errorf("%w; this host has %s: add `folders: [%s]` to the spec",
		err, at, prefix(at))
}

// sight returns how an instance comes to see a file.
func (p program) sight(file string) string {
	if p.Layers != nil {
		return "put it into the image"
	}
	return fmt.Sprintf("where the host has it, add `folders: [%s]` to the spec", prefix(file))
}
