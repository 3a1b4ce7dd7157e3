package trust

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

// A token has 16 bytes of the authority's hash, 8 of its end time, 6 of a name and 2 of the number
// of hosts. The last 16 are its proof.
const (
	tokenPrefix = "pando1"
	hashBytes   = 16
	untilBytes  = 8
	nameBytes   = 6
	usesBytes   = 2
	bodyBytes   = hashBytes + untilBytes + nameBytes + usesBytes
	proofBytes  = 16
)

// UsesMax is the largest number of hosts for one token: as many as a cluster has.
const UsesMax = pando.HostSlots

// forServers marks a token that also makes a host a server. It is a bit of the number of hosts.
const forServers = 1 << 15

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// hashOf returns the hash of an authority's key, which outlives its certificates.
func hashOf(c *x509.Certificate) []byte {
	h := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return h[:hashBytes]
}

// Token returns a token that admits `uses` hosts until a time.
func (a *Authority) Token(until time.Time, uses int) (string, error) {
	return a.token(until, uses, 0)
}

// ServerToken returns a token that admits one host until a time and makes it a server.
func (a *Authority) ServerToken(until time.Time) (string, error) {
	return a.token(until, 1, forServers)
}

func (a *Authority) token(until time.Time, uses, mark int) (string, error) {
	if uses < 1 || uses > UsesMax {
		return "", fmt.Errorf("%w: a token for %d hosts: want 1 to %d", pando.ErrInvalid, uses, UsesMax)
	}
	body := binary.BigEndian.AppendUint64(hashOf(a.Certificate()), uint64(until.Unix()))
	var name [nameBytes]byte
	if _, err := rand.Read(name[:]); err != nil {
		return "", err
	}
	body = binary.BigEndian.AppendUint16(append(body, name[:]...), uint16(uses|mark))
	proof, err := a.proof(body)
	if err != nil {
		return "", err
	}
	return tokenPrefix + letters.EncodeToString(append(body, proof...)), nil
}

// proof needs the authority's key.
func (a *Authority) proof(body []byte) ([]byte, error) {
	secret, err := a.key.Bytes()
	if err != nil {
		return nil, err
	}
	m := hmac.New(sha256.New, append([]byte("pando join token\n"), secret...))
	m.Write(body)
	return m.Sum(nil)[:proofBytes], nil
}

var errBadToken = fmt.Errorf("%w: the token is not one of this cluster; make one with `pando "+
	"token` on the server's host", pando.ErrForbidden)

// Check returns nil if a token is valid now, else the reason. The store counts its uses.
func (a *Authority) Check(token string, now time.Time) error {
	_, err := a.read(token, now)
	return err
}

// CheckServer returns nil if a token is valid now and makes a host a server, else the reason.
func (a *Authority) CheckServer(token string, now time.Time) error {
	body, err := a.read(token, now)
	if err == nil && binary.BigEndian.Uint16(body[bodyBytes-usesBytes:])&forServers == 0 {
		err = fmt.Errorf("%w: the token admits hosts only; `pando servers add` on a server's host "+
			"prints one that makes a server", pando.ErrForbidden)
	}
	return err
}

func (a *Authority) read(token string, now time.Time) (body []byte, err error) {
	raw, err := readToken(token)
	if err != nil {
		return nil, err
	}
	body, proof := raw[:bodyBytes], raw[bodyBytes:]
	want, err := a.proof(body)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(proof, want) {
		return nil, errBadToken
	}
	if until := endOf(body); !now.Before(until) {
		return nil, fmt.Errorf("%w: the token ended at %s; make a new one with `pando token` on the "+
			"server's host", pando.ErrForbidden, until.UTC().Format(time.RFC3339))
	}
	return body, nil
}

func endOf(body []byte) time.Time {
	return time.Unix(int64(binary.BigEndian.Uint64(body[hashBytes:])), 0)
}

func readToken(token string) ([]byte, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(token), tokenPrefix)
	raw, err := letters.DecodeString(text)
	if !ok || err != nil || len(raw) != bodyBytes+proofBytes || letters.EncodeToString(raw) != text {
		return nil, fmt.Errorf("%w: %q is no token, or only a part of one; `pando token` on the "+
			"server's host prints one", pando.ErrInvalid, token)
	}
	return raw, nil
}

// Use returns one use of a token that is valid now. The store counts it (access.Admissions).
func (a *Authority) Use(token string, now time.Time) (access.TokenUse, error) {
	body, err := a.read(token, now)
	if err != nil {
		return access.TokenUse{}, err
	}
	return a.use(body, "")
}

// UseServer returns the use of a token that makes a host a server. The host's admission is a use of
// its own.
func (a *Authority) UseServer(token string, now time.Time) (access.TokenUse, error) {
	if err := a.CheckServer(token, now); err != nil {
		return access.TokenUse{}, err
	}
	body, err := a.read(token, now)
	if err != nil {
		return access.TokenUse{}, err
	}
	return a.use(body, "-server")
}

func (a *Authority) use(body []byte, suffix string) (access.TokenUse, error) {
	name := hex.EncodeToString(body[hashBytes+untilBytes:bodyBytes-usesBytes]) + suffix
	before, err := a.former(name)
	return access.TokenUse{
		Name: name, Until: endOf(body), Before: before,
		Most: int(binary.BigEndian.Uint16(body[bodyBytes-usesBytes:]) &^ forServers),
	}, err
}

// former returns the uses of a token in the file of an earlier build. No build writes it any more.
func (a *Authority) former(name string) (int, error) {
	path := filepath.Join(a.dir, "tokens.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	all := map[string]access.TokenUses{}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return 0, fmt.Errorf("read which tokens were used: %w; remove %s to forget it", err, path)
	}
	return all[name].Uses, nil
}
