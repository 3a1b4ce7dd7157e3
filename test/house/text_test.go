package house

import (
	"bufio"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// text is one file that people read, in any language.
type text struct {
	path     string // relative to the module's root, with slashes
	language string // "go", "rust", "c", "python", "shell" or "markdown"
	lines    []string
}

// languages maps a file's extension to its language. A file without an extension is a script if it
// begins with a shebang.
var languages = map[string]string{
	".go": "go", ".rs": "rust", ".c": "c", ".h": "c", ".py": "python", ".sh": "shell",
	".md": "markdown",
}

// written is a generated file's mark, in any language.
var written = regexp.MustCompile(`(?m)^(// Code generated|<!-- generated)`)

// texts reads every file of the tree that people write and read. It skips build output and
// generated files.
func texts(t *testing.T) []text {
	t.Helper()
	var all []text
	walk(t, func(name, rel string, d fs.DirEntry) error {
		if d.IsDir() {
			return skipBuilt(rel)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		read, err := readText(name, rel)
		if err != nil || read == nil {
			return err
		}
		all = append(all, *read)
		return nil
	})
	if len(all) < 100 {
		t.Fatalf("found %d files: the test looks in the wrong place", len(all))
	}
	return all
}

// skipBuilt returns fs.SkipDir for folders that hold no sources.
func skipBuilt(rel string) error {
	base := path.Base(rel)
	if rel != "." && (strings.HasPrefix(base, ".") || base == "target" || base == "bin" ||
		base == "build" || base == "testdata" || base == "node_modules" || base == "reference") {
		return fs.SkipDir
	}
	return nil
}

// readText returns the file, or nil if it is in no language of the table.
func readText(name, rel string) (*text, error) {
	language, known := languages[path.Ext(rel)]
	if !known && path.Ext(rel) != "" {
		return nil, nil
	}
	if !known {
		script, err := shebang(name)
		if err != nil || script == "" {
			return nil, err
		}
		language = script
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if written.Match(content) || strings.Contains(rel, "_bpfel") {
		return nil, nil
	}
	return &text{rel, language, strings.Split(string(content), "\n")}, nil
}

// shebang returns the language of a script without an extension, or "".
func shebang(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	first, _ := bufio.NewReader(f).ReadString('\n') // a shorter file is no script
	switch {
	case !strings.HasPrefix(first, "#!"):
		return "", nil
	case strings.Contains(first, "python"):
		return "python", nil
	default:
		return "shell", nil
	}
}

// isProgram reports whether the file is code rather than prose.
func (x text) isProgram() bool { return x.language != "markdown" }

// room is the folder of the top that the file lives in; "." for the root itself.
func (x text) room() string {
	if dir, _, below := strings.Cut(x.path, "/"); below {
		return dir
	}
	return "."
}
