package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"maps"
	"pando.run/pando"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Bounds of the tokens of tenants.
const (
	TokensMax     = 100                  // of one tenant
	TokenLifeMax  = 366 * 24 * time.Hour // of one token
	tokenHashSize = sha256.Size
)

// TokenRight is a permission of a tenant's token. Every token may read the services of its tenant.
type TokenRight string

const (
	// TokenScale allows changes of the number of instances.
	TokenScale TokenRight = "scale"
	// TokenDeploy allows changes of specs that use nothing of the hosts, rollouts, secrets, and the
	// removal of services.
	TokenDeploy TokenRight = "deploy"
	// TokenExec allows commands inside instances, and runs.
	TokenExec TokenRight = "exec"
	// TokenHost lets TokenDeploy and TokenExec use programs, folders and users of the hosts.
	TokenHost TokenRight = "host"
)

// TokenRights lists every right of tokens.
var TokenRights = []TokenRight{TokenScale, TokenDeploy, TokenExec, TokenHost}

// TokenKey names a token of a tenant.
type TokenKey struct {
	Tenant pando.Tenant `json:"tenant"`
	Name   string       `json:"name"`
}

// String returns TENANT/NAME.
func (k TokenKey) String() string { return string(k.Tenant) + "/" + k.Name }

// Key returns the key of the token's record.
func (k TokenKey) Key() pando.Key { return pando.MakeKey(pando.KindToken, string(k.Tenant), k.Name) }

// Token is the record of a token. The store has the hash of its secret alone.
type Token struct {
	TokenKey
	Hash  []byte       `json:"hash"` // TokenHash of the secret
	May   []TokenRight `json:"may,omitempty"`
	At    time.Time    `json:"at"`
	By    string       `json:"by,omitempty"`
	Until time.Time    `json:"until"`
}

// TokenHash returns the stored form of a secret of 32 random bytes. It needs no salt: such a secret
// cannot be guessed.
func TokenHash(secret []byte) []byte {
	h := sha256.Sum256(secret)
	return h[:]
}

// Check returns nil if the record is valid, else the reason.
func (t Token) Check() error {
	if err := pando.CheckLabel("tenant", string(t.Tenant)); err != nil {
		return err
	}
	if err := pando.CheckLabel("token", t.Name); err != nil {
		return err
	}
	if len(t.Hash) != tokenHashSize {
		return fmt.Errorf("%w: token %s has a hash of %d bytes", pando.ErrInvalid, t.TokenKey, len(t.Hash))
	}
	for _, r := range t.May {
		if !slices.Contains(TokenRights, r) {
			return fmt.Errorf("%w: the right %q: want %s", pando.ErrInvalid, r, tokenRights(TokenRights))
		}
	}
	return nil
}

// Has reports whether the token has a right.
func (t Token) Has(r TokenRight) bool { return slices.Contains(t.May, r) }

// Lacks returns the error of a request that needs a right.
func (t Token) Lacks(r TokenRight) error {
	return fmt.Errorf("%w: the token %s may not %s; on a server's host, `pando tenant token add %s "+
		"%s --may %s --replace` makes one that may", pando.ErrForbidden, t.TokenKey, r, t.Tenant, t.Name,
		tokenRights(append(slices.Clone(t.May), r)))
}

// Admits returns nil if a secret is that of the token and the token is valid at a time. The time of
// the answer does not depend on the secret. A zero token admits nothing.
func (t Token) Admits(secret []byte, now time.Time) error {
	want := t.Hash
	if len(want) != tokenHashSize {
		want = make([]byte, tokenHashSize) // no secret has this hash
	}
	if subtle.ConstantTimeCompare(want, TokenHash(secret)) != 1 {
		return ErrBadToken
	}
	if !now.Before(t.Until) {
		return fmt.Errorf("%w: the token %s ended at %s; on a server's host, `pando tenant token add` "+
			"makes a new one", pando.ErrForbidden, t.TokenKey, t.Until.UTC().Format(time.RFC3339))
	}
	return nil
}

// ErrBadToken is the error of an unknown token and of a wrong secret alike.
var ErrBadToken = fmt.Errorf("%w: the token is not one of this cluster, or it was removed; "+
	"`pando tenant token ls` on a server's host lists the tokens", pando.ErrForbidden)

// tokenRights returns rights as the words of a command line.
func tokenRights(rights []TokenRight) string {
	var words []string
	for _, r := range TokenRights {
		if slices.Contains(rights, r) {
			words = append(words, string(r))
		}
	}
	return strings.Join(words, ",")
}

// Text returns the rights of the token in words, in a fixed order.
func (t Token) Text() string {
	if len(t.May) == 0 {
		return "read"
	}
	return "read," + tokenRights(t.May)
}

// kernelMemory matches the settings that bound memory of the kernel that no limit of an instance
// counts: buffers of sockets, fragments, neighbours and routes.
var kernelMemory = regexp.MustCompile(`(_[rw]?mem|mem_(max|default|min)|_high_thresh|gc_thresh\d|unres_qlen(_bytes)?|` +
	`route\.max_size|max_tw_buckets|max_dgram_qlen)$`)

// OfHosts returns the first word of a spec that uses something of the hosts, or "". Such a spec may
// read files of others, or take a user that others have.
func OfHosts(s pando.Spec) string {
	switch {
	case len(s.Endpoints) > 0:
		return "endpoints"
	case s.IsVM():
		return "kind: vm"
	case s.Bundle.Folder != "":
		return "bundle"
	case s.Image.Reference == "":
		return "command without image"
	case s.Image.OfFiles():
		return "image: " + s.Image.Reference
	case len(s.Folders) > 0:
		return "folders"
	case len(s.Secrets) > 0:
		return "secrets of files"
	case len(s.SecurityOpt) > 0:
		return "security_opt"
	case s.UsernsMode != "":
		return "userns_mode"
	case len(s.Grants) > 0:
		return "grants"
	case len(pando.HostPorts(s.Ports)) > 0:
		return "publish.host"
	}
	for _, name := range slices.Sorted(maps.Keys(s.Sysctls)) {
		if kernelMemory.MatchString(name) {
			return "sysctls." + name
		}
	}
	for _, r := range s.Reach {
		if r != pando.ReachTenant && r != pando.ReachInternet {
			return "reach: " + string(r)
		}
	}
	return ""
}

type tokenKey struct{}

// WithToken returns the context of a request by a token of a tenant. Control refuses what the token
// may not do where the request takes effect.
func WithToken(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, tokenKey{}, t)
}

// TokenOf returns the token of a request. ok is false for operators of hosts and for decisions of
// control.
func TokenOf(ctx context.Context) (t Token, ok bool) {
	t, ok = ctx.Value(tokenKey{}).(Token)
	return t, ok
}

// MayUseHosts returns nil if the author of a request may bring a spec into force, or run commands
// with it. Else it returns the reason: the spec uses something of the hosts, and the token has no
// right to that.
func MayUseHosts(ctx context.Context, s pando.Spec) error {
	t, ok := TokenOf(ctx)
	word := OfHosts(s)
	if !ok || word == "" || t.Has(TokenHost) {
		return nil
	}
	return fmt.Errorf("%s uses something of the hosts: %w", word, t.Lacks(TokenHost))
}

// TokenChange asks for a new token.
type TokenChange struct {
	May        []TokenRight `json:"may,omitempty" enum:"scale,deploy,exec,host" doc:"none: read"`
	ForSeconds float64      `json:"for_seconds" minimum:"1" maximum:"31622400" doc:"the time that it is valid"`
	Replace    bool         `json:"replace,omitempty" doc:"end a token of this name first"`
}

// IssuedToken is a new token. This answer alone has its text.
type IssuedToken struct {
	TokenKey
	Token string       `json:"token"`
	API   string       `json:"api"` // https://ADDRESS:PORT of the server, for PANDO_API
	May   []TokenRight `json:"may,omitempty"`
	Until time.Time    `json:"until"`
}

// TokenStatus is one line of `pando tenant token ls`.
type TokenStatus struct {
	TokenKey
	May   []TokenRight `json:"may,omitempty"`
	At    time.Time    `json:"at"`
	By    string       `json:"by,omitempty"`
	Until time.Time    `json:"until"`
}

// TokenOperators is every request about the tokens of tenants.
type TokenOperators interface {
	// SetToken stores a token. ErrExists: there is one of its name, and replace is not set.
	SetToken(ctx context.Context, t Token, replace bool, by pando.Asker) error
	// Tokens returns every token, sorted by tenant and name.
	Tokens(ctx context.Context) ([]TokenStatus, error)
	// RemoveToken ends a token, within a second also for requests in progress.
	RemoveToken(ctx context.Context, k TokenKey, by pando.Asker) error
}

// Issuer makes tokens of tenants. A server that listens for other hosts implements it.
type Issuer interface {
	// IssueToken makes a token, stores its hash and returns its text.
	IssueToken(ctx context.Context, k TokenKey, c TokenChange, by pando.Asker) (IssuedToken, error)
}
