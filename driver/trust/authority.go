// Package trust says who is a member of a cluster: an authority that is made with the cluster, tokens by which a host asks
// to join, and certificates by which it is known from then on (X.509, TLS 1.3, standard library only).
//
// It never decides who may join and never speaks to anybody: others carry what it makes and checks.
package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	"sync"
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
	dir         string     // of its files
	using       sync.Mutex // which tokens were used
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
	return &Authority{certificate: certificate, key: key, dir: dir}, nil
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

// RequestedKey is pando.PublicKeyHash of the key that a certificate request (DER) is for. The asker has proved that it has
// that key. Errors: ErrInvalid.
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

// Sign gives a host its certificate; request is a certificate request in DER, of which only the key counts.
func (a *Authority) Sign(request []byte, h pando.HostName, now time.Time) ([]byte, error) {
	r, err := readRequest(request)
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", h, err)
	}
	return a.sign(r.PublicKey, string(h)+hostSuffix, now)
}

// Renew gives an identity that this authority's own host made a new certificate.
func (a *Authority) Renew(i *Identity, now time.Time) error {
	der, err := a.sign(&i.key.PublicKey, i.own.Load().Leaf.Subject.CommonName, now)
	if err != nil {
		return fmt.Errorf("renew a certificate: %w", err)
	}
	return i.Accept(der, a.certificate.Raw)
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
