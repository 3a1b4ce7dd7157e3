package trust

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pando.run/pando"
)

// sealingBytes is the length of a sealing key: AES-256.
const sealingBytes = 32

// sealed is bound to each sealed text, so that it is no other text of the same key.
const sealed = "pando authority 1"

// SealingKey seals the authority on its way to a new server. The servers have it on their disks.
type SealingKey []byte

func sealingFile(dir string) string { return filepath.Join(dir, "sealing.key") }

// OpenSealingKey reads the sealing key from dir, or makes it if there is none.
func OpenSealingKey(dir string) (SealingKey, error) {
	text, err := os.ReadFile(sealingFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		k := make(SealingKey, sealingBytes)
		if _, err := rand.Read(k); err != nil {
			return nil, err
		}
		return k, k.Save(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the sealing key: %w", err)
	}
	k, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(k) != sealingBytes {
		return nil, fmt.Errorf("%w: the sealing key in %s is damaged; copy the file from another server",
			pando.ErrInvalid, sealingFile(dir))
	}
	return k, nil
}

// Save writes the sealing key to dir, readable only by its owner.
func (k SealingKey) Save(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = replace(sealingFile(dir), []byte(hex.EncodeToString(k)+"\n"))
	}
	if err != nil {
		return fmt.Errorf("write the sealing key: %w", err)
	}
	return nil
}

func (k SealingKey) cipher() (cipher.AEAD, error) {
	b, err := aes.NewCipher(k)
	if err != nil {
		return nil, fmt.Errorf("%w: the sealing key: %w", pando.ErrInvalid, err)
	}
	return cipher.NewGCMWithRandomNonce(b)
}

// Seal returns the authority's certificate and key, which only the sealing key opens.
func (a *Authority) Seal(k SealingKey) ([]byte, error) {
	c, err := k.cipher()
	if err != nil {
		return nil, err
	}
	text, err := pair(a.Certificate().Raw, a.key)
	if err != nil {
		return nil, err
	}
	return c.Seal(nil, nil, text, []byte(sealed)), nil
}

// Unseal writes a sealed authority to dir, where OpenAuthority finds it. An authority in dir must
// have the same key. want is the authority by which the caller verified the giver.
func (k SealingKey) Unseal(dir string, text []byte, want *Identity) error {
	c, err := k.cipher()
	if err != nil {
		return err
	}
	plain, err := c.Open(nil, nil, text, []byte(sealed))
	if err != nil {
		return fmt.Errorf("%w: the sealing key does not open the authority of the cluster; copy %s "+
			"from another server", pando.ErrForbidden, sealingFile(dir))
	}
	certificate, key, err := parsePair(plain)
	if err != nil {
		return err
	}
	known := want.authority.Load()
	if !key.PublicKey.Equal(known.PublicKey) || known.CheckSignatureFrom(certificate) != nil {
		return fmt.Errorf("%w: the sealed authority is another cluster's", pando.ErrForbidden)
	}
	path := filepath.Join(dir, "authority.pem")
	if own, err := os.ReadFile(path); err == nil {
		if _, has, err := parsePair(own); err != nil || !has.Equal(key) {
			return fmt.Errorf("%w: %s is the authority of another cluster; `pando down --purge` here "+
				"deletes it", pando.ErrExists, path)
		}
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write the authority: %w", err)
	}
	if err := replace(path, plain); err != nil {
		return fmt.Errorf("write the authority: %w", err)
	}
	return nil
}
