// Package trust identifies the members of a cluster. It has an authority that is made with the
// cluster, tokens that admit hosts, and certificates that identify members. It uses X.509 and TLS
// 1.3 from the standard library only.
//
// It never decides which hosts may join and never sends anything: other packages carry its tokens
// and certificates.
package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

const (
	// An authority renews itself with its own key when half of its life is over.
	authorityLife = 20 * 365 * 24 * time.Hour
	// CertificateLife is long enough for a host with a long absence. Renewal comes long before.
	CertificateLife = 365 * 24 * time.Hour
	clockSkew       = time.Hour // the largest difference between the clocks of two hosts

	authorityName = "pando authority"
	// ServerName is the server's name in its certificate. hostSuffix ends the names in hosts'
	// certificates.
	ServerName = "server.pando"
	hostSuffix = ".host.pando"
)

// Authority is the cluster's authority. Read access to its file is enough to admit hosts.
type Authority struct {
	certificate atomic.Pointer[x509.Certificate]
	key         *ecdsa.PrivateKey
	dir         string // of its files
}

// OpenAuthority reads the authority of the cluster from dir, or makes it if there is none.
func OpenAuthority(dir string, now time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for certificates: %w", err)
	}
	a := &Authority{dir: dir}
	if err := a.refresh(now); err != nil {
		return nil, fmt.Errorf("the authority of the cluster: %w", err)
	}
	return a, nil
}

// refresh reads the authority from its file, makes it if there is none, and renews it if it is old.
// Several processes of this host may do that at the same time.
func (a *Authority) refresh(now time.Time) error {
	lock, err := os.OpenFile(filepath.Join(a.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the folder for certificates: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	path := filepath.Join(a.dir, "authority.pem")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && a.key == nil {
		var key *ecdsa.PrivateKey
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err == nil {
			text, err = writeAuthority(path, key, now)
		}
	}
	if err != nil {
		return err
	}
	certificate, key, err := parsePair(text)
	if err == nil && old(certificate, now) {
		if text, err = writeAuthority(path, key, now); err == nil {
			certificate, key, err = parsePair(text)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if a.key == nil {
		a.key = key
	}
	if !a.key.Equal(key) {
		return fmt.Errorf("%w: %s has another key than this process; restart with `pando daemons restart`",
			pando.ErrInvalid, path)
	}
	a.certificate.Store(certificate)
	return nil
}

// old reports whether less than half of a certificate's life is left. It is also old if its life
// begins in the future: it was made while the clock was wrong.
func old(c *x509.Certificate, now time.Time) bool {
	left, life := c.NotAfter.Sub(now), c.NotAfter.Sub(c.NotBefore)
	return left < life/2 || now.Before(c.NotBefore)
}

func writeAuthority(path string, key *ecdsa.PrivateKey, now time.Time) ([]byte, error) {
	text, err := newAuthority(key, now)
	if err == nil {
		err = replace(path, text)
	}
	return text, err
}

// newAuthority returns a certificate for the key of an authority. All certificates for one key
// verify the same members.
func newAuthority(key *ecdsa.PrivateKey, now time.Time) ([]byte, error) {
	var err error
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: authorityName}, IsCA: true,
		BasicConstraintsValid: true, MaxPathLenZero: true,
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

func serial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
}

// pair returns a certificate and its key as one text.
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

// replace writes a file, all or nothing, readable only by its owner.
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

// Certificate returns the certificate against which members verify each other.
func (a *Authority) Certificate() *x509.Certificate { return a.certificate.Load() }

// RequestedKey returns the pando.PublicKeyHash of the key in a certificate request (DER). The asker
// has proved that it has that key. Errors: ErrInvalid.
func RequestedKey(request []byte) (string, error) {
	r, err := readRequest(request)
	if err != nil {
		return "", err
	}
	return pando.PublicKeyHash(r.RawSubjectPublicKeyInfo), nil
}

func readRequest(request []byte) (*x509.CertificateRequest, error) {
	r, err := x509.ParseCertificateRequest(request)
	if err == nil {
		err = r.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the certificate request: %w", pando.ErrInvalid, err)
	}
	return r, nil
}

// Sign returns a certificate for a host. request is a certificate request in DER; only its key
// counts.
func (a *Authority) Sign(request []byte, h pando.HostName, now time.Time) ([]byte, error) {
	r, err := readRequest(request)
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", h, err)
	}
	return a.sign(r.PublicKey, string(h)+hostSuffix, now)
}

// Renew gives a new certificate to an identity of this authority's own host. It first renews the
// authority, if that is old.
func (a *Authority) Renew(i *Identity, now time.Time) error {
	err := a.refresh(now)
	if err != nil {
		return fmt.Errorf("renew the authority of the cluster: %w", err)
	}
	der, err := a.sign(&i.key.PublicKey, i.own.Load().Leaf.Subject.CommonName, now)
	if err != nil {
		return fmt.Errorf("renew a certificate: %w", err)
	}
	return i.Accept(der, a.Certificate().Raw)
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
	return x509.CreateCertificate(rand.Reader, t, a.Certificate(), public, a.key)
}

// HostOf returns the host that a verified certificate names.
func HostOf(c *x509.Certificate) (pando.HostName, error) {
	name, ok := strings.CutSuffix(c.Subject.CommonName, hostSuffix)
	if !ok || pando.CheckLabel("host", name) != nil {
		return "", fmt.Errorf("%w: the certificate of %q is not a host's",
			pando.ErrForbidden, c.Subject.CommonName)
	}
	return pando.HostName(name), nil
}

// ProbeKey returns the key by which the members seal their probes of each other. It follows from
// the authority's key, so all servers give out the same.
func (a *Authority) ProbeKey() ([]byte, error) {
	secret, err := a.key.Bytes()
	if err != nil {
		return nil, fmt.Errorf("make the key of the probes: %w", err)
	}
	return hkdf.Key(sha256.New, secret, nil, "pando liveness probes", sha256.Size)
}
