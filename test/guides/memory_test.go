package guides

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTheGuideOfAGuideCompiles builds the code of the page by the command that the page names.
func TestTheGuideOfAGuideCompiles(t *testing.T) {
	t.Parallel()
	source := filepath.Join(t.TempDir(), "my_guide.c")
	if err := os.WriteFile(source, []byte(blocks(t, "write-a-guide.md")["c"]), 0o644); err != nil {
		t.Fatal(err)
	}
	cc := exec.Command("clang", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-I",
		"../../sdk/guide/c", "-o", filepath.Join(filepath.Dir(source), "libmy_guide.so"), source)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
