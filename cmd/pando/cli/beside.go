package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"pando.run/pando"
)

// FindBeside finds a program that is built with pando in another language. It looks next to pando,
// then in the PATH.
func FindBeside(name string) (string, error) {
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %s is neither next to pando nor in the PATH; "+
			"install cargo and run `make build`", pando.ErrNotFound, name)
	}
	return path, nil
}
