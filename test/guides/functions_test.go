package guides

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	define = regexp.MustCompile(`(?m)^#define (PANDO_[A-Z_]+) \(?([0-9]+)(?: \* ([0-9]+))?\)?(?:\s|$)`)
	flag   = regexp.MustCompile(`(?m)^#define (PANDO_[A-Z_]+) +([0-9]+)u\b`)
	used   = regexp.MustCompile(`\b(?:pando_|PANDO_)[a-zA-Z_]+`)
	method = regexp.MustCompile("`([A-Z][A-Za-z]+)\\(")
)

// The reference of functions matches the SDKs in C and Go: the same numbers, and only names that
// they have.
func TestTheReferenceOfFunctionsIsTheSDK(t *testing.T) {
	text := func(name string) string {
		b, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	said, inGo := text("docs/reference/functions.md"), text("sdk/function/go/pando.go")
	header := text("sdk/function/c/pando_nf.h") + text("sdk/function/c/pando_packet.h")
	has := func(row string) {
		if !strings.Contains(said, row) {
			t.Errorf("docs/reference/functions.md lacks %s", row)
		}
	}
	limits := 0
	for _, m := range define.FindAllStringSubmatch(header, -1) {
		value, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if factor, err := strconv.Atoi(m[3]); err == nil {
			value *= factor
		}
		if m[1] == "PANDO_ABI" {
			has(fmt.Sprintf("ABI version %d", value))
		} else {
			has(fmt.Sprintf("| %d | `%s`", value, m[1]))
		}
		limits++
	}
	if limits < 5 {
		t.Errorf("only %d limits were found in pando_nf.h", limits)
	}
	for _, m := range flag.FindAllStringSubmatch(header, -1) {
		row := regexp.MustCompile("(?m)^\\| `" + m[1] + "` \\|.*\\| " + m[2] + " \\|$")
		if !row.MatchString(said) {
			t.Errorf("docs/reference/functions.md does not document that %s is %s", m[1], m[2])
		}
	}
	for _, name := range used.FindAllString(said, -1) {
		if name != "pando_nf" && name != "pando_packet" && !strings.Contains(header, name) {
			t.Errorf("docs/reference/functions.md names %s, which no header for C has", name)
		}
	}
	for _, m := range method.FindAllStringSubmatch(said, -1) {
		if !strings.Contains(inGo, ") "+m[1]+"(") && !strings.Contains(inGo, "func "+m[1]+"(") {
			t.Errorf("docs/reference/functions.md speaks of %s, and pando.go has no such function", m[1])
		}
	}
}
