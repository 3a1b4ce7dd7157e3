package pando

import (
	"context"
	"fmt"
	"regexp"
	"time"
)

// Bounds of the secrets in the store.
const (
	SecretBytesMax   = 64 << 10  // of one secret
	SecretsBytesMax  = 512 << 10 // of all secrets of one instance
	SecretsMax       = 64        // of one spec
	TenantSecretsMax = 1000      // of one tenant
)

var secretName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// SecretKey names a secret of a tenant.
type SecretKey struct {
	Tenant Tenant `json:"tenant"`
	Name   string `json:"name"`
}

// String returns NAME, or TENANT/NAME outside the default tenant.
func (k SecretKey) String() string {
	if k.Tenant == DefaultTenant {
		return k.Name
	}
	return string(k.Tenant) + "/" + k.Name
}

// Key returns the key of the secret's record.
func (k SecretKey) Key() Key { return MakeKey(KindSecret, string(k.Tenant), k.Name) }

// Check returns nil if the name is valid, else the reason.
func (k SecretKey) Check() error {
	if err := CheckLabel("tenant", string(k.Tenant)); err != nil {
		return err
	}
	if !secretName.MatchString(k.Name) {
		return fmt.Errorf("%w: %q: want a name of letters, digits, '_', '-' and '.'", ErrInvalid, k.Name)
	}
	return nil
}

// Secret is the record of a secret. Only a server opens it, with a key of its tenant.
type Secret struct {
	SecretKey
	Sealed []byte    `json:"sealed"` // age-encrypted
	At     time.Time `json:"at"`
	By     string    `json:"by,omitempty"`
}

// StoredSecret is a secret of the store in a spec.
type StoredSecret struct {
	Name string `json:"name"`
	// OnChange is the signal that the program gets after a new content is in its file. "": none.
	OnChange string `json:"on_change,omitempty"`
}

// SecretStatus is one line of `pando secret ls`.
type SecretStatus struct {
	SecretKey
	At       time.Time    `json:"at"`
	By       string       `json:"by,omitempty"`
	Services []ServiceKey `json:"services"` // with it in their newest spec
}

// Vault seals the contents of secrets for the store.
type Vault interface {
	// Seal encrypts the content of a secret. No other name opens the result.
	Seal(k SecretKey, content []byte) ([]byte, error)
	// Open returns the content of a sealed secret. ErrForbidden: another cluster or name sealed it.
	Open(k SecretKey, sealed []byte) ([]byte, error)
	// SnapshotKey returns the key of the encrypted snapshots of a tenant.
	SnapshotKey(t Tenant) (SnapshotKey, error)
	// SnapshotSealKey returns the key that proves the snapshots of an instance and its revision.
	SnapshotSealKey(s ServiceKey, i InstanceID, revision int) (SnapshotSealKey, error)
}

// SecretOperators is every request about secrets. None returns a content.
type SecretOperators interface {
	// SetSecret stores a secret, or replaces its content. Running instances get the new content.
	SetSecret(ctx context.Context, k SecretKey, content []byte, by Asker) (SecretStatus, error)
	// Secrets returns every secret, sorted by tenant and name.
	Secrets(ctx context.Context) ([]SecretStatus, error)
	// RemoveSecret removes a secret. ErrRefused: a service has it in its spec.
	RemoveSecret(ctx context.Context, k SecretKey, by Asker) error
}

// HasSecret reports whether the spec names a secret of the store.
func (s Spec) HasSecret(name string) bool {
	for _, one := range s.StoredSecrets {
		if one.Name == name {
			return true
		}
	}
	return false
}
