package process

import (
	"bytes"
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

// keepSecrets gives the program its secrets as files in memory that its user alone may read. The
// shim keeps a mount of its own, by which it replaces them.
func (s *shim) keepSecrets(p program) error {
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
	tree, err := unix.OpenTree(unix.AT_FDCWD, secretsFolder,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("keep the secrets in %s: %w", secretsFolder, err)
	}
	s.secrets = secretFiles{os.NewFile(uintptr(tree), secretsFolder)}
	for name, text := range p.Secrets {
		if err := s.secrets.put(name, text, p); err != nil {
			return fmt.Errorf("keep the secret %s: %w", name, err)
		}
	}
	return readOnly(secretsFolder, 0)
}

// secretFiles are the secrets of a program, by a writable mount of their folder. Without a mount it
// has none.
type secretFiles struct{ mount *os.File }

// put puts a secret in its place at once: a reader sees the former content or this one.
func (s secretFiles) put(name string, text []byte, p program) error {
	const fresh = ".new"
	in := int(s.mount.Fd())
	_ = unix.Unlinkat(in, fresh, 0) // of a former attempt
	fd, err := unix.Openat(in, fresh, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), fresh)
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o400), f.Chown(int(p.outside(p.UID)), int(p.outside(p.GID))),
		f.Close())
	if err != nil {
		return errors.Join(err, unix.Unlinkat(in, fresh, 0))
	}
	return unix.Renameat(in, fresh, in, name)
}

// has reports whether a secret has this content now.
func (s secretFiles) has(name string, text []byte) bool {
	fd, err := unix.Openat(int(s.mount.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	now, err := io.ReadAll(io.LimitReader(f, secretBytesMax+1))
	return err == nil && bytes.Equal(now, text)
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
	due := map[unix.Signal]bool{}
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		if s.secrets.has(name, secrets[name]) {
			continue
		}
		if err := s.secrets.put(name, secrets[name], *s.program); err != nil {
			return changed, fmt.Errorf("replace the secret %s: %w", name, err)
		}
		changed = append(changed, name)
		if sig := unix.SignalNum(signals[name]); sig != 0 {
			due[sig] = true
		}
	}
	for sig := range due {
		if s.pid == 0 {
			continue // it has ended
		}
		if err := unix.Kill(s.pid, sig); err != nil {
			return changed, fmt.Errorf("signal the program: %w", err)
		}
	}
	return changed, nil
}

// Renew implements pando.Sandbox.
func (b *sandbox) Renew(
	ctx context.Context, secrets map[string][]byte, signals map[string]string,
) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, shimWaitMax)
	defer cancel()
	r, err := b.ask(ctx, request{Verb: "renew", Secrets: secrets, Signals: signals})
	return r.Names, err
}
