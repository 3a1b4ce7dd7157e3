package process

import (
	"fmt"
	"os/exec"

	"pando.run/pando"
)

// runtimeOf returns the path of the runtime that a spec asks for, or "".
func runtimeOf(s pando.Spec) (string, error) {
	if s.Runtime == "" {
		return "", nil
	}
	at, err := exec.LookPath(s.Runtime)
	if err != nil {
		return "", fmt.Errorf("%w: this host has no %s: run `apt-get install %[2]s` there, or leave "+
			"`runtime` out of the spec", pando.ErrUnsupported, s.Runtime)
	}
	if s.Image.Digest == "" {
		return "", fmt.Errorf("%w: `runtime: %s` runs images: name one with `image`",
			pando.ErrUnsupported, s.Runtime)
	}
	return at, nil
}
