package recipe

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// libraries finds the shared libraries of programs as the dynamic loader does, and runs no program.
type libraries struct {
	cached map[string]string // paths by class and name, from the loader's cache
	seen   map[string]bool
}

// newLibraries reads the loader's cache.
func newLibraries() (*libraries, error) {
	l := &libraries{cached: map[string]string{}, seen: map[string]bool{}}
	program, err := exec.LookPath("ldconfig")
	if err != nil {
		program = "/sbin/ldconfig"
	}
	out, err := exec.Command(program, "-p").Output()
	if err != nil {
		return nil, fmt.Errorf("list the shared libraries of this machine (`ldconfig -p`): %w", err)
	}
	for line := range bytes.Lines(out) {
		name, rest, _ := strings.Cut(strings.TrimSpace(string(line)), " (")
		kind, at, ok := strings.Cut(rest, ") => ")
		key := class(strings.Contains(kind, "64")) + name
		if ok && l.cached[key] == "" {
			l.cached[key] = at
		}
	}
	return l, nil
}

func class(wide bool) string {
	if wide {
		return "64:"
	}
	return "32:"
}

// of returns the loader and the libraries of a program, and their libraries. A script has those of
// its interpreter, which it also returns.
func (l *libraries) of(program string) (out []string, err error) {
	program, err = filepath.EvalSymlinks(program)
	if err != nil || l.seen[program] {
		return nil, err
	}
	l.seen[program] = true
	if by := interpreter(program); by != "" {
		more, err := l.of(by)
		return append(more, by), err
	}
	f, err := elf.Open(program)
	var format *elf.FormatError
	if errors.As(err, &format) {
		return nil, nil // neither a script nor a program: it has no libraries
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, min(p.Filesz, 4096))
			if _, err := p.ReadAt(b, 0); err != nil {
				return nil, fmt.Errorf("%s: %w", program, err)
			}
			out = append(out, strings.TrimRight(string(b), "\x00"))
		}
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	for _, name := range names {
		at, err := l.find(f, program, name)
		if err != nil {
			return nil, err
		}
		more, err := l.of(at)
		if err != nil {
			return nil, err
		}
		out = append(append(out, at), more...)
	}
	return out, nil
}

// find returns the path of a library that a program names.
func (l *libraries) find(f *elf.File, program, name string) (string, error) {
	if path.IsAbs(name) {
		return name, nil
	}
	var dirs []string
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		texts, err := f.DynString(tag)
		if err != nil {
			return "", fmt.Errorf("%s: %w", program, err)
		}
		for _, text := range texts {
			dirs = append(dirs, strings.Split(text, ":")...)
		}
	}
	for _, dir := range dirs {
		dir = strings.NewReplacer("${ORIGIN}", path.Dir(program), "$ORIGIN",
			path.Dir(program)).Replace(dir)
		at := path.Join(dir, name)
		if _, err := os.Stat(at); err == nil && path.IsAbs(at) {
			return at, nil
		}
	}
	if at := l.cached[class(f.Class == elf.ELFCLASS64)+name]; at != "" {
		return at, nil
	}
	return "", fmt.Errorf("%s needs %s, which this machine lacks: %w", program, name, fs.ErrNotExist)
}

// interpreter returns the program that the first line of a script names, or "".
func interpreter(script string) string {
	f, err := os.Open(script)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, 256)
	n, _ := f.Read(b)
	line, _, _ := strings.Cut(string(b[:n]), "\n")
	rest, ok := strings.CutPrefix(line, "#!")
	if words := strings.Fields(rest); ok && len(words) > 0 && path.IsAbs(words[0]) {
		return words[0]
	}
	return ""
}
