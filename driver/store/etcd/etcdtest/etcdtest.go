// Package etcdtest prepares an etcd that runs without Pando, for tests of `pando up --store`: its
// files of mutual TLS and its command line.
//
// It starts nothing: a test decides where the etcd runs.
package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Etcd is an etcd that runs without Pando, for `pando up --store`. It demands mutual TLS.
type Etcd struct {
	Endpoint             string
	CA, Certificate, Key string   // files of a client
	Argv                 []string // its command line
	dir                  string
	now                  time.Time
	authority            *x509.Certificate
	signer               *ecdsa.PrivateKey
}

// Program returns Debian's etcd of at least 3.5, which deploy/etcd unpacks.
func Program(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		program := filepath.Join(dir, "bin/etcd/usr/bin/etcd")
		if _, err := os.Stat(program); err == nil {
			return program
		}
	}
	t.Skip("etcd 3.5 is not in bin/etcd; deploy/etcd unpacks it")
	return ""
}

// New makes the files of an etcd at an address:port in a folder, and its command line. Its peer
// port is the next one. Its certificates count from an hour before now to an hour after.
func New(
	t testing.TB, now time.Time, program, dir string, at netip.AddrPort, flags ...string,
) *Etcd {
	t.Helper()
	e := &Etcd{Endpoint: "https://" + at.String(), dir: dir, now: now}
	e.authority, e.signer = e.authorise(t)
	e.CA = filepath.Join(dir, "ca.pem")
	writePEM(t, e.CA, "CERTIFICATE", e.authority.Raw)
	certificate, key := e.Sign(t, "etcd", at.Addr())
	e.Certificate, e.Key = e.Sign(t, "pando")
	peers := "http://" + netip.AddrPortFrom(at.Addr(), at.Port()+1).String()
	e.Argv = append([]string{program, "--data-dir", filepath.Join(dir, "etcd"), "--name", "theirs",
		"--listen-client-urls", e.Endpoint, "--advertise-client-urls", e.Endpoint,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
		"--initial-cluster", "theirs=" + peers, "--initial-cluster-token", filepath.Base(dir),
		"--cert-file", certificate, "--key-file", key, "--trusted-ca-file", e.CA, "--client-cert-auth",
		"--heartbeat-interval", "50", "--election-timeout", "500", "--max-txn-ops", "1024"}, flags...)
	return e
}

// Sign returns the files of a certificate of the etcd's authority, for a name and for addresses.
func (e *Etcd) Sign(t testing.TB, name string, at ...netip.Addr) (certificate, key string) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := e.template(name)
	for _, a := range at {
		c.IPAddresses = append(c.IPAddresses, net.IP(a.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, c, e.authority, &own.PublicKey, e.signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key = filepath.Join(e.dir, name+".pem"), filepath.Join(e.dir, name+".key")
	writePEM(t, certificate, "CERTIFICATE", der)
	writePEM(t, key, "EC PRIVATE KEY", private)
	return certificate, key
}

// Flags returns the flags of `pando up` for this etcd.
func (e *Etcd) Flags() []string {
	return []string{"--store", e.Endpoint, "--store-ca", e.CA, "--store-cert", e.Certificate,
		"--store-key", e.Key}
}

func (e *Etcd) authorise(t testing.TB) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := e.template("authority")
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made, key
}

func (e *Etcd) template(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: e.now.Add(-time.Hour), NotAfter: e.now.Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
