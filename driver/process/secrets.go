package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// secretBytesMax bounds the content of one secret, and secretsBytesMax that of all.
const (
	secretBytesMax  = pando.SecretBytesMax
	secretsBytesMax = pando.SecretsBytesMax
	secretsFolder   = "/run/secrets"
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

// keepSecrets gives the program its secrets as files in memory that its user alone may read.
func (s *shim) keepSecrets(p program) error {
	if len(p.Secrets) == 0 {
		return nil
	}
	var err error
	if s.secrets, err = holdFiles(secretsFolder, "mode=711,size=1m"); err != nil {
		return fmt.Errorf("keep the secrets in %s: %w", secretsFolder, err)
	}
	for name, text := range p.Secrets {
		if err := s.secrets.put(name, text, secretMode, p); err != nil {
			return fmt.Errorf("keep the secret %s: %w", name, err)
		}
	}
	return readOnly(secretsFolder, 0)
}

// secretMode lets the user of the program alone read a secret.
const secretMode = 0o400

// renew replaces the secrets that differ, and then signals the program. A stopped program gets the
// signal when it continues.
func (s *shim) renew(secrets map[string][]byte, signals map[string]string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program == nil || s.secrets.mount == nil {
		return nil, fmt.Errorf("%w: the instance began without secrets; replace it with a new deploy",
			pando.ErrUnsupported)
	}
	var changed []string
	var failed []error
	due := map[unix.Signal]bool{}
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		if s.secrets.has(name, secrets[name]) {
			continue
		}
		if err := s.secrets.put(name, secrets[name], secretMode, *s.program); err != nil {
			failed = append(failed, fmt.Errorf("replace the secret %s: %w", name, err))
			continue
		}
		changed = append(changed, name)
		if sig := unix.Signal(pando.SignalNumber(signals[name])); sig != 0 {
			due[sig] = true
		}
	}
	// A secret that was written is not written again, so its signal comes now or never.
	for sig := range due {
		failed = append(failed, hint(s.pid, sig))
	}
	return changed, errors.Join(failed...)
}

// hint signals a program that a file has changed.
func hint(pid int, sig unix.Signal) error {
	if pid == 0 || sig == 0 {
		return nil // it has ended, or wants no signal
	}
	if err := unix.Kill(pid, sig); err != nil {
		return fmt.Errorf("signal the program: %w", err)
	}
	return nil
}

// Renew implements pando.Sandbox.
func (b *sandbox) Renew(
	ctx context.Context, secrets map[string][]byte, signals map[string]string,
) ([]string, error) {
	r, err := b.askSoon(ctx, request{Verb: "renew", Secrets: secrets, Signals: signals})
	return r.Names, err
}
