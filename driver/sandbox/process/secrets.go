package process

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// secretBytesMax bounds the content of one secret, and secretsBytesMax that of all.
const (
	secretBytesMax  = pando.SecretBytesMax
	secretsBytesMax = pando.SecretsBytesMax
)

// readSecrets returns the content of the secrets of an instance, by name: those of the store, and
// files of the host. It reads the files at each start, and nothing stores them.
func readSecrets(s pando.SandboxSpec) (map[string][]byte, error) {
	if len(s.Spec.Secrets)+len(s.Secrets) == 0 {
		return nil, nil
	}
	out, all := map[string][]byte{}, 0
	for name, text := range s.Secrets {
		out[name] = text
		all += len(text)
	}
	for name, file := range s.Spec.Secrets {
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

// Renew implements pando.Sandbox.
func (b *sandbox) Renew(
	ctx context.Context, secrets map[string][]byte, signals map[string]string,
) ([]string, error) {
	r, err := b.askSoon(ctx, wire.Request{Verb: "renew", Secrets: secrets, Signals: signals})
	return r.Names, err
}
