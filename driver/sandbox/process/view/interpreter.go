package view

import (
	"bufio"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// HopsMax bounds the links and interpreters that are followed, as the kernel does.
const HopsMax = 40

// InterpreterIn returns the program that the first line of a script names, or "".
func InterpreterIn(f io.Reader) string {
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	rest, ok := strings.CutPrefix(string(line), "#!")
	if words := strings.Fields(rest); ok && len(words) > 0 {
		return words[0]
	}
	return ""
}

// InterpreterOf returns the interpreter of a program: the one in the first line of a script, with that
// line, or the one in the head of a binary.
func InterpreterOf(path string) (line, interpreter string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	text, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	if by := InterpreterIn(strings.NewReader(string(text))); by != "" {
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

// PrefixOf returns the folder of a program. Its libraries lie beside its bin.
func PrefixOf(path string) string {
	dir := filepath.Dir(path)
	switch filepath.Base(dir) {
	case "bin", "sbin", "libexec":
		if above := filepath.Dir(dir); strings.Count(above, "/") >= 2 {
			return above
		}
	}
	return dir
}

// LookPath finds argv[0]: with a slash relative to the working directory, without one in the
// program's PATH.
func LookPath(p wire.Program) (string, error) {
	name := p.Argv[0]
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(p.Dir, path)
		}
		err := runnable(path)
		if at, _ := target(path); errors.Is(err, pando.ErrNotFound) && at != path {
			err = cmp.Or(WhyAbsent(p, path), err)
		}
		return path, err
	}
	search := ""
	for _, v := range p.Env {
		if rest, ok := strings.CutPrefix(v, "PATH="); ok {
			search = rest
		}
	}
	for _, dir := range filepath.SplitList(search) {
		path := filepath.Join(dir, name)
		if runnable(path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no program %q in PATH=%s; give its path, or set PATH in "+
		"`environment` in the spec", pando.ErrNotFound, name, search)
}

// NoProgram is in the error of a program that is not there.
const NoProgram = "there is no program"

func runnable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: "+NoProgram+" %s; check `command` and `working_dir` in the spec "+
			"(an instance sees the system's folders, and of others those in `folders`)",
			pando.ErrNotFound, path)
	case info.IsDir():
		return fmt.Errorf("%w: %s is a folder, not a program", pando.ErrInvalid, path)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%w: %s is not executable; chmod +x it", pando.ErrInvalid, path)
	}
	return nil
}
