package shim

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

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

// secretMode lets the user of the program alone read a secret.
const secretMode = 0o400

const secretsFolder = "/run/secrets"

// keepSecrets gives the program its secrets as files in memory that its user alone may read.
func (s *shim) keepSecrets(p wire.Program) error {
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
