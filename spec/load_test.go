package spec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
)

// A file that is no spec is refused with the next step, at the place of its first error.
func TestAFileThatIsNoSpecIsRefusedWithTheNextStep(t *testing.T) {
	const text = "# Title\n\nSome text: here\n\n- a list\n"
	for name, next := range map[string]bool{"README.md": true, "web.yaml": false} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(t.Context(), file)
		if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), name+":5:1: ") ||
			strings.Contains(err.Error(), "`pando spec schema`") != next {
			t.Errorf("%s: %v", name, err)
		}
	}
}
