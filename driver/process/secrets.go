package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// secretBytesMax bounds the content of one secret, and secretsBytesMax that of all.
const (
	secretBytesMax  = 64 << 10
	secretsBytesMax = 512 << 10
	secretsFolder   = "/run/secrets"
)

// readSecrets returns the content of the secrets of a spec, by name. It reads them at each start,
// and nothing stores them.
func readSecrets(s pando.Spec) (map[string][]byte, error) {
	if len(s.Secrets) == 0 {
		return nil, nil
	}
	out, all := map[string][]byte{}, 0
	for name, file := range s.Secrets {
		f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe does not block it
		if err != nil {
			return nil, fmt.Errorf("read the secret %s: %w; check `secrets` in the spec", name, err)
		}
		text, err := io.ReadAll(io.LimitReader(f, secretBytesMax+1))
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read the secret %s: %w; check `secrets` in the spec", name, err)
		}
		if all += len(text); len(text) > secretBytesMax || all > secretsBytesMax {
			return nil, fmt.Errorf("%w: the secret %s: one may have %d bytes, and all together %d",
				pando.ErrTooLarge, name, secretBytesMax, secretsBytesMax)
		}
		out[name] = text
	}
	return out, nil
}

// keepSecrets gives the program its secrets as files in memory that its user alone may read.
func keepSecrets(p program) error {
	if len(p.Secrets) == 0 {
		return nil
	}
	err := os.MkdirAll(secretsFolder, 0o711)
	if err == nil {
		err = unix.Mount("tmpfs", secretsFolder, "tmpfs", inert, "mode=711,size=1m,noswap")
	}
	if errors.Is(err, unix.EINVAL) { // noswap needs Linux 6.4
		err = unix.Mount("tmpfs", secretsFolder, "tmpfs", inert, "mode=711,size=1m")
	}
	if err != nil {
		return fmt.Errorf("keep the secrets in %s: %w", secretsFolder, err)
	}
	for name, text := range p.Secrets {
		path := filepath.Join(secretsFolder, name)
		err := os.WriteFile(path, text, 0o400)
		if err == nil {
			err = errors.Join(os.Chmod(path, 0o400), os.Chown(path, int(p.outside(p.UID)),
				int(p.outside(p.GID))))
		}
		if err != nil {
			return fmt.Errorf("keep the secret %s: %w", name, err)
		}
	}
	return readOnly(secretsFolder, 0)
}
