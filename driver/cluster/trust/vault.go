package trust

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"filippo.io/age"

	"pando.run/pando"
)

// vault seals secrets with age, by a key of 256 bits for each tenant. The keys follow from the
// authority's key, so every server and every restored backup opens them.
type vault struct{ a *Authority }

// vaultWork is the work factor of age's scrypt. A key of 256 random bits needs no stretching.
const vaultWork = 1

// Vault returns the vault of the cluster.
func (a *Authority) Vault() pando.Vault { return vault{a} }

// passphrase returns the key of a tenant as age takes it.
func (v vault) passphrase(t pando.Tenant) (string, error) { return v.derive("secrets", t) }

// SnapshotKey implements pando.Vault.
func (v vault) SnapshotKey(t pando.Tenant) (pando.SnapshotKey, error) {
	key, err := v.derive("snapshots", t)
	return pando.SnapshotKey(key), err
}

// SnapshotSealKey implements pando.Vault.
func (v vault) SnapshotSealKey(
	s pando.ServiceKey, i pando.InstanceID, revision int,
) (pando.SnapshotSealKey, error) {
	// No name has a slash or a space, so no two instances have one key.
	key, err := v.derive(fmt.Sprintf("snapshot seal of %s/%s/%s revision %d", s.Tenant, s.Name, i,
		revision), s.Tenant)
	return pando.SnapshotSealKey(key), err
}

// derive returns a key of 256 bits for one kind of things of a tenant.
func (v vault) derive(kind string, t pando.Tenant) (string, error) {
	secret, err := v.a.key.Bytes()
	if err != nil {
		return "", fmt.Errorf("make the key of the %s: %w", kind, err)
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "pando "+kind+" of "+string(t), sha256.Size)
	return hex.EncodeToString(key), err
}

// heading is the start of each sealed text, which binds the content to its name.
func heading(k pando.SecretKey) []byte { return []byte("pando secret 1\n" + k.Name + "\n") }

// Seal implements pando.Vault.
func (v vault) Seal(k pando.SecretKey, content []byte) ([]byte, error) {
	words, err := v.passphrase(k.Tenant)
	if err != nil {
		return nil, err
	}
	to, err := age.NewScryptRecipient(words)
	if err != nil {
		return nil, fmt.Errorf("seal the secret %s: %w", k, err)
	}
	to.SetWorkFactor(vaultWork)
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to)
	if err == nil {
		_, err = w.Write(append(heading(k), content...))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("seal the secret %s: %w", k, err)
	}
	return out.Bytes(), nil
}

// Open implements pando.Vault.
func (v vault) Open(k pando.SecretKey, sealed []byte) ([]byte, error) {
	words, err := v.passphrase(k.Tenant)
	if err != nil {
		return nil, err
	}
	by, err := age.NewScryptIdentity(words)
	if err != nil {
		return nil, fmt.Errorf("open the secret %s: %w", k, err)
	}
	by.SetMaxWorkFactor(vaultWork)
	var text []byte
	in, err := age.Decrypt(bytes.NewReader(sealed), by)
	if err == nil {
		text, err = io.ReadAll(in)
	}
	content, own := bytes.CutPrefix(text, heading(k))
	if err != nil || !own {
		return nil, fmt.Errorf("%w: the secret %s is sealed by another cluster, or damaged; set it "+
			"again with `pando secret set`", pando.ErrForbidden, k)
	}
	return content, nil
}
