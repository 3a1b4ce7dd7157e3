package trust

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"strings"

	"pando.run/pando"
	"pando.run/pando/access"
)

// A tenant's token is pandot1.TENANT.NAME.LETTERS. The letters have 16 bytes of the authority's
// hash and a secret of 32 bytes.
const (
	tenantPrefix = "pandot1"
	secretBytes  = 32
)

// IsTenantToken reports whether a text looks like a token of a tenant.
func IsTenantToken(text string) bool { return strings.HasPrefix(text, tenantPrefix+".") }

// TenantToken returns the text of a new token of a tenant, and its secret.
func (a *Authority) TenantToken(k access.TokenKey) (text string, secret []byte, err error) {
	secret = make([]byte, secretBytes)
	if _, err := rand.Read(secret); err != nil {
		return "", nil, err
	}
	body := append(hashOf(a.Certificate()), secret...)
	parts := []string{tenantPrefix, string(k.Tenant), k.Name, letters.EncodeToString(body)}
	return strings.Join(parts, "."), secret, nil
}

// ReadTenantToken returns the name and the secret in the text of a token. It returns
// access.ErrBadToken for any other text, and never repeats the text.
func ReadTenantToken(text string) (k access.TokenKey, secret []byte, err error) {
	k, body, err := readTenantToken(text)
	if err != nil {
		return k, nil, err
	}
	return k, body[hashBytes:], nil
}

func readTenantToken(text string) (k access.TokenKey, body []byte, err error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 4 || parts[0] != tenantPrefix {
		return k, nil, access.ErrBadToken
	}
	k = access.TokenKey{Tenant: pando.Tenant(parts[1]), Name: parts[2]}
	body, err = letters.DecodeString(parts[3])
	if err != nil || len(body) != hashBytes+secretBytes || letters.EncodeToString(body) != parts[3] ||
		pando.CheckLabel("tenant", parts[1]) != nil || pando.CheckLabel("token", parts[2]) != nil {
		return access.TokenKey{}, nil, access.ErrBadToken
	}
	return k, body, nil
}

// ByTenantToken returns the TLS configuration of a caller with a tenant's token. It sends nothing
// before the server has shown the authority with the hash in the token.
func ByTenantToken(text string) (*tls.Config, error) {
	_, body, err := readTenantToken(text)
	if err != nil {
		return nil, fmt.Errorf("PANDO_TOKEN is no token of a tenant, or only a part of one: %w", err)
	}
	return byHash(body[:hashBytes]), nil
}
