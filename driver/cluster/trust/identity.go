package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"pando.run/pando"
)

// Identity is a key with its certificate from the cluster's authority, renewed in place.
type Identity struct {
	key       *ecdsa.PrivateKey
	authority atomic.Pointer[x509.Certificate]
	own       atomic.Pointer[tls.Certificate]
}

// NewKey returns an identity with a new key and no certificate yet.
func NewKey() (*Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return &Identity{key: key}, nil
}

// Identity makes an identity for the server's own host, which shares the authority's file. "" is
// the server itself.
func (a *Authority) Identity(h pando.HostName, now time.Time) (*Identity, error) {
	i, err := NewKey()
	if err != nil {
		return nil, err
	}
	name := ServerName
	if h != "" {
		name = string(h) + hostSuffix
	}
	der, err := a.sign(&i.key.PublicKey, name, now)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for %s: %w", name, err)
	}
	return i, i.Accept(der, a.Certificate().Raw)
}

// Request returns a certificate request for the authority, in DER.
func (i *Identity) Request() ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, i.key)
}

// Accept stores a certificate (DER) and the authority that signed it. A renewal must have the key
// of the same authority. The authority's own certificate may be a newer one.
func (i *Identity) Accept(der, authority []byte) error {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("read a certificate: %w", err)
	}
	ca, err := x509.ParseCertificate(authority)
	if err != nil {
		return fmt.Errorf("read the authority's certificate: %w", err)
	}
	public, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok || !public.Equal(&i.key.PublicKey) || leaf.CheckSignatureFrom(ca) != nil {
		return fmt.Errorf("%w: the certificate is not for this host's key", pando.ErrInvalid)
	}
	if known := i.authority.Load(); known != nil &&
		!bytes.Equal(known.RawSubjectPublicKeyInfo, ca.RawSubjectPublicKeyInfo) {
		return fmt.Errorf("%w: the certificate is another cluster's", pando.ErrForbidden)
	}
	i.authority.Store(ca)
	i.own.Store(&tls.Certificate{Certificate: [][]byte{der, authority}, PrivateKey: i.key, Leaf: leaf})
	return nil
}

// PublicKey returns the pando.PublicKeyHash of the identity's key.
func (i *Identity) PublicKey() string {
	return pando.PublicKeyHash(i.own.Load().Leaf.RawSubjectPublicKeyInfo)
}

// Ends returns the end of the certificate's validity.
func (i *Identity) Ends() time.Time { return i.own.Load().Leaf.NotAfter }

// Stale reports whether the certificate is older than an age, or was made while the clock was
// wrong.
func (i *Identity) Stale(now time.Time, age time.Duration) bool {
	since := i.own.Load().Leaf.NotBefore.Add(clockSkew)
	return now.Sub(since) >= age || since.Sub(now) >= age
}

func (i *Identity) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(i.authority.Load())
	return p
}

func (i *Identity) base() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return i.own.Load(), nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return i.own.Load(), nil
		},
	}
}

// ToServer returns a member's TLS configuration for the cluster's server and no other peer.
func (i *Identity) ToServer() *tls.Config { return i.to(ServerName) }

// ToHost returns a member's TLS configuration for the agent of one host and no other peer.
func (i *Identity) ToHost(h pando.HostName) *tls.Config { return i.to(string(h) + hostSuffix) }

// to verifies the meant name at any dialled address: libraries put the address in place of
// ServerName.
func (i *Identity) to(name string) *tls.Config {
	c := i.base()
	c.ServerName, c.InsecureSkipVerify = name, true // VerifyConnection does it
	c.VerifyConnection = func(s tls.ConnectionState) error {
		return verify(s.PeerCertificates, i.pool(), name)
	}
	return c
}

func verify(shown []*x509.Certificate, roots *x509.CertPool, name string) error {
	if len(shown) == 0 {
		return fmt.Errorf("%w: no certificate", pando.ErrForbidden)
	}
	_, err := shown[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
	if wrong := (x509.CertificateInvalidError{}); errors.As(err, &wrong) &&
		wrong.Reason == x509.Expired {
		return fmt.Errorf("%w: its certificate is of %s to %s (UTC), and not of this host's time: set "+
			"the clock of the host that is wrong, then try again", pando.ErrForbidden,
			shown[0].NotBefore.UTC().Format(time.DateTime), shown[0].NotAfter.UTC().Format(time.DateTime))
	}
	if err != nil {
		return fmt.Errorf("%w: it is not %s of this cluster: %w", pando.ErrForbidden, name, err)
	}
	return nil
}

// Members returns a member's TLS configuration for its listener. It accepts members only.
// protocols are those above TLS, such as h2; none means HTTP/1.1.
func (i *Identity) Members(protocols ...string) *tls.Config {
	return i.listens(tls.RequireAndVerifyClientCert, protocols)
}

// Servers returns a server's TLS configuration for the listener of the other servers. It accepts
// them only: a member's certificate is refused.
func (i *Identity) Servers() *tls.Config {
	now := func() *tls.Config {
		c := i.base()
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, i.pool()
		c.VerifyConnection = func(s tls.ConnectionState) error {
			return verify(s.PeerCertificates, i.pool(), ServerName)
		}
		return c
	}
	c := now()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return now(), nil }
	return c
}

// Anybody returns the server's TLS configuration for the listener where hosts ask to join. It
// verifies a certificate if there is one.
func (i *Identity) Anybody() *tls.Config { return i.listens(tls.VerifyClientCertIfGiven, nil) }

// listens returns a configuration that serves and verifies with the newest certificates at each
// handshake.
func (i *Identity) listens(auth tls.ClientAuthType, protocols []string) *tls.Config {
	now := func() *tls.Config {
		c := i.base()
		c.ClientAuth, c.ClientCAs, c.NextProtos = auth, i.pool(), protocols
		return c
	}
	c := now()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return now(), nil }
	return c
}

// ByToken returns the TLS configuration of a host that is not a member yet, for the server of its
// token. It sends nothing before the server has shown the authority with the hash in the token.
func ByToken(token string) (*tls.Config, error) {
	raw, err := readToken(token)
	if err != nil {
		return nil, err
	}
	return byHash(raw[:hashBytes]), nil
}

// byHash returns a configuration that accepts the server of the authority with a hash.
func byHash(hash []byte) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: ServerName,
		// VerifyConnection does it, against the token instead of the system's authorities.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 2 || !hmac.Equal(hashOf(s.PeerCertificates[1]), hash) {
				return fmt.Errorf("%w: the token is another cluster's; make one with `pando token` on the "+
					"server's host", pando.ErrForbidden)
			}
			roots := x509.NewCertPool()
			roots.AddCert(s.PeerCertificates[1])
			return verify(s.PeerCertificates, roots, ServerName)
		},
	}
}

// Membership is the stored membership of a host.
type Membership struct {
	Host      pando.HostName `json:"host"`
	Slot      int            `json:"slot"`
	Server    string         `json:"server"` // the server that admitted it: address:port
	Store     string         `json:"store"`  // https://address:port
	Pair      string         `json:"pair"`   // its certificate and its key
	Authority string         `json:"authority"`
	Probes    []byte         `json:"probes,omitempty"` // Authority.ProbeKey; nil: of an earlier build
	Identity  *Identity      `json:"-"`
}

// LoadMembership reads the membership that Save wrote in dir, or returns nil if this host has
// joined no cluster.
func LoadMembership(dir string) (*Membership, error) {
	path := filepath.Join(dir, "member.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read this host's membership: %w", err)
	}
	m := &Membership{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("read this host's membership in %s: %w; remove the file and join again",
			path, err)
	}
	leaf, key, err := parsePair([]byte(m.Pair))
	if err != nil {
		return nil, fmt.Errorf("read this host's membership in %s: %w", path, err)
	}
	ca, _ := pem.Decode([]byte(m.Authority))
	if ca == nil {
		return nil, fmt.Errorf("%w: this host's membership in %s names no authority; remove the file "+
			"and join again", pando.ErrInvalid, path)
	}
	m.Identity = &Identity{key: key}
	return m, m.Identity.Accept(leaf.Raw, ca.Bytes)
}

// Save writes the membership, with the identity's newest certificate, to dir.
func (m *Membership) Save(dir string) error {
	text, err := pair(m.Identity.own.Load().Certificate[0], m.Identity.key)
	if err != nil {
		return err
	}
	m.Pair = string(text)
	m.Authority = string(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.Identity.authority.Load().Raw}))
	out, err := json.Marshal(m)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = replace(filepath.Join(dir, "member.json"), out)
	}
	if err != nil {
		return fmt.Errorf("keep this host's membership: %w", err)
	}
	return nil
}
