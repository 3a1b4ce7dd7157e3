package house

import (
	"regexp"
	"strings"
	"testing"
)

// function is one function of a program in a language other than Go. Its layout marks its end:
// rustfmt and the house's C, Python and shell indent the end of a function like its start.
type function struct {
	name        string
	first, last int // lines, counted from 1
}

func (f function) lines() int { return f.last - f.first + 1 }

var heads = map[string]*regexp.Regexp{
	"rust": regexp.MustCompile(
		`^(\s*)(?:pub(?:\([a-z: ]+\))? )?(?:default )?(?:const )?(?:async )?(?:unsafe )?` +
			`(?:extern "C(?:-unwind)?" )?fn (\w+)`),
	"c":      regexp.MustCompile(`^()[a-z][\w\s*]*?\b(\w+)\([^;]*$`),
	"python": regexp.MustCompile(`^(\s*)(?:async )?def (\w+)\(`),
	"shell":  regexp.MustCompile(`^(\s*)(\w+)\(\) \{`),
}

// functions returns the functions of a file that is not Go.
func (x text) functions() (out []function) {
	head := heads[x.language]
	if head == nil {
		return nil
	}
	for i, line := range x.lines {
		m := head.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		end := braceEnd
		if x.language == "python" {
			end = indentEnd
		}
		if last := end(x.lines, i, m[1]); last > i {
			out = append(out, function{m[2], i + 1, last + 1})
		}
	}
	return out
}

// braceEnd returns the line that closes the block that begins at or after line i. It returns i if
// the function has no body of its own lines.
func braceEnd(lines []string, i int, indent string) int {
	opened := false
	for j := i; j < len(lines); j++ {
		line := lines[j]
		opened = opened || strings.Contains(line, "{")
		switch {
		case !opened && strings.HasSuffix(line, ";"):
			return i // a declaration
		case j == i && strings.HasSuffix(line, "}"):
			return i
		case opened && j > i && strings.HasPrefix(line, indent+"}"):
			return j
		}
	}
	return i
}

// indentEnd returns the last line of a Python function.
func indentEnd(lines []string, i int, indent string) int {
	last := i
	for j := i + 1; j < len(lines); j++ {
		body := strings.TrimLeft(lines[j], " ")
		if body == "" || strings.HasPrefix(body, ")") {
			continue
		}
		if len(lines[j])-len(body) <= len(indent) {
			break
		}
		last = j
	}
	return last
}

func TestProgramsOfEveryLanguageAreShort(t *testing.T) {
	for _, x := range texts(t) {
		if !x.isProgram() || x.language == "go" {
			continue
		}
		for _, f := range x.functions() {
			if f.lines() > functionLinesMax {
				t.Errorf("%s:%d: %s has %d lines, at most %d",
					x.path, f.first, f.name, f.lines(), functionLinesMax)
			}
		}
	}
}

func TestFunctionsAreFoundInEveryLanguage(t *testing.T) {
	for _, c := range []struct {
		language, program string
		want              function
	}{
		{"rust", "impl X {\n    pub(crate) fn walk(&self) {\n        if a {\n        }\n    }\n}",
			function{"walk", 2, 5}},
		{"rust", "unsafe extern \"C\" fn f(\n    a: u8,\n) -> u8 {\n    a\n}", function{"f", 1, 5}},
		{"c", "static int f(int a,\n\t     int b)\n{\n\tif (a) {\n\t}\n\treturn b;\n}",
			function{"f", 1, 7}},
		{"python", "def f(a,\n      b):\n    c = 1\n\n    return c\n\nx = 2", function{"f", 1, 5}},
		{"shell", "walk() { # walk DIR\n\tls\n}\n", function{"walk", 1, 3}},
	} {
		found := text{"file", c.language, strings.Split(c.program, "\n")}.functions()
		if len(found) != 1 || found[0] != c.want {
			t.Errorf("%s: found %v, want %v in\n%s", c.language, found, c.want, c.program)
		}
	}
	declared := text{"file", "rust",
		[]string{"trait T {", "    fn f(&self);", "    fn g(&self) {}", "}"}}.functions()
	if len(declared) != 0 {
		t.Errorf("declarations were taken for functions: %v", declared)
	}
}
