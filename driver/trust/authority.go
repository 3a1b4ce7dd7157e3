// Package trust says who is a member of a cluster: an authority that is made with the cluster, tokens by which a host asks
// to join, and certificates by which it is known from then on (X.509, TLS 1.3, standard library only).
//
// It never decides who may join and never speaks to anybody: others carry what it makes and checks.
package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

const (
	authorityLife = 20 * 365 * 24 * time.Hour
	// CertificateLife of a member: long enough for a host that is away for long, renewed long before.
	CertificateLife = 365 * 24 * time.Hour
	clockSkew       = time.Hour // by which the clocks of two hosts may differ

	authorityName = "pando authority"
	// ServerName is in the certificate of the server, and the ending of the names in those of hosts.
	ServerName = "server.pando"
	hostSuffix = ".host.pando"
)

// Authority is the cluster's: whoever can read its file can admit hosts.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// OpenAuthority reads the authority of the cluster whose server keeps its trust in dir, and makes it if there is none.
func OpenAuthority(dir string, now time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for certificates: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder for certificates: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	path := filepath.Join(dir, "authority.pem")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = newAuthority(now); err == nil {
			err = replace(path, text)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the authority of the cluster: %w", err)
	}
	certificate, key, err := parsePair(text)
	if err != nil {
		return nil, fmt.Errorf("the authority of the cluster in %s: %w", path, err)
	}
	return &Authority{certificate, key}, nil
}

func newAuthority(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: authorityName}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(authorityLife),
	}
	if t.SerialNumber, err = serial(); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return pair(der, key)
}

func serial() (*big.Int, error) { return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126)) }

// pair is a certificate and its key as one text.
func pair(der []byte, key *ecdsa.PrivateKey) ([]byte, error) {
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})...), nil
}

func parsePair(text []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	first, rest := pem.Decode(text)
	second, _ := pem.Decode(rest)
	if first == nil || second == nil {
		return nil, nil, fmt.Errorf("%w: it is damaged; restore the file from a copy", pando.ErrInvalid)
	}
	certificate, err := x509.ParseCertificate(first.Bytes)
	if err != nil {
		return nil, nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(second.Bytes)
	if err != nil {
		return nil, nil, err
	}
	k, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("%w: its key is a %T", pando.ErrInvalid, key)
	}
	return certificate, k, nil
}

// replace writes a file whole or not at all, for its owner alone.
func replace(path string, text []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Certificate is what members verify each other against.
func (a *Authority) Certificate() *x509.Certificate { return a.certificate }

// Sign gives a host its certificate; request is a certificate request in DER, of which only the key counts.
func (a *Authority) Sign(request []byte, h pando.HostName, now time.Time) ([]byte, error) {
	r, err := x509.ParseCertificateRequest(request)
	if err == nil {
		err = r.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the certificate request of host %s: %w", pando.ErrInvalid, h, err)
	}
	return a.sign(r.PublicKey, string(h)+hostSuffix, now)
}

func (a *Authority) sign(public any, name string, now time.Time) ([]byte, error) {
	number, err := serial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		NotBefore:   now.Add(-clockSkew), NotAfter: now.Add(CertificateLife),
	}
	return x509.CreateCertificate(rand.Reader, t, a.certificate, public, a.key)
}

// HostOf says whose a verified certificate is.
func HostOf(c *x509.Certificate) (pando.HostName, error) {
	name, ok := strings.CutSuffix(c.Subject.CommonName, hostSuffix)
	if !ok || pando.CheckLabel("host", name) != nil {
		return "", fmt.Errorf("%w: the certificate of %q is not a host's", pando.ErrForbidden, c.Subject.CommonName)
	}
	return pando.HostName(name), nil
}

// A token is 16 bytes of the authority's hash, 8 of the moment at which it ends, 16 of proof.
const (
	tokenPrefix = "pando1"
	hashBytes   = 16
	proofBytes  = 16
)

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func hashOf(c *x509.Certificate) []byte {
	h := sha256.Sum256(c.Raw)
	return h[:hashBytes]
}

// Token lets hosts join until then.
func (a *Authority) Token(until time.Time) (string, error) {
	body := binary.BigEndian.AppendUint64(hashOf(a.certificate), uint64(until.Unix()))
	proof, err := a.proof(body)
	if err != nil {
		return "", err
	}
	return tokenPrefix + letters.EncodeToString(append(body, proof...)), nil
}

// proof can be made by who has the authority's key only.
func (a *Authority) proof(body []byte) ([]byte, error) {
	secret, err := a.key.Bytes()
	if err != nil {
		return nil, err
	}
	m := hmac.New(sha256.New, append([]byte("pando join token\n"), secret...))
	m.Write(body)
	return m.Sum(nil)[:proofBytes], nil
}

var errBadToken = fmt.Errorf("%w: the token is not one of this cluster; make one with `pando token` on the server's host", pando.ErrForbidden)

// Check says why a token does not admit anybody now, or nil.
func (a *Authority) Check(token string, now time.Time) error {
	raw, err := readToken(token)
	if err != nil {
		return err
	}
	body, proof := raw[:len(raw)-proofBytes], raw[len(raw)-proofBytes:]
	want, err := a.proof(body)
	if err != nil {
		return err
	}
	if !hmac.Equal(proof, want) {
		return errBadToken
	}
	if until := time.Unix(int64(binary.BigEndian.Uint64(body[hashBytes:])), 0); !now.Before(until) {
		return fmt.Errorf("%w: the token ended at %s; make a new one with `pando token` on the server's host", pando.ErrForbidden, until.UTC().Format(time.RFC3339))
	}
	return nil
}

func readToken(token string) ([]byte, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(token), tokenPrefix)
	raw, err := letters.DecodeString(text)
	if !ok || err != nil || len(raw) != hashBytes+8+proofBytes || letters.EncodeToString(raw) != text {
		return nil, fmt.Errorf("%w: %q is no token, or only a part of one; `pando token` on the server's host prints one", pando.ErrInvalid, token)
	}
	return raw, nil
}
