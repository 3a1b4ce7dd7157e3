package cli

import (
	"os"
	"path/filepath"

	"pando.run/pando/driver/sandbox/criu"
)

// Freezer returns the CRIU of this host: that of the folder in PANDO_CRIU, of the folder criu
// beside this program, or of criu.Home.
func Freezer() criu.Tool {
	beside := ""
	if self, err := os.Executable(); err == nil {
		beside = filepath.Join(filepath.Dir(self), "criu")
	}
	return criu.Find(os.Getenv("PANDO_CRIU"), beside)
}
