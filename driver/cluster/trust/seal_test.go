package trust

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pando.run/pando"
)

// A second server gets the authority sealed, and admits hosts to the same cluster.
func TestASealedAuthorityOpensWithItsKeyOnly(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	a, err := OpenAuthority(first, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, err := a.Identity("two", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := OpenSealingKey(first)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := OpenSealingKey(first); err != nil || string(again) != string(key) {
		t.Errorf("the key read back is %x (%v)", again, err)
	}
	text, err := a.Seal(key)
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenSealingKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Unseal(second, text, own); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("another key opens it: %v", err)
	}
	damagedTextsStayShut(t, key, second, text, own)
	foreign, err := OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := foreign.Identity("two", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := key.Unseal(second, text, stranger); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("it opens for a member of another cluster: %v", err)
	}
	if _, err := os.Stat(filepath.Join(second, "authority.pem")); err == nil {
		t.Error("a refused authority was written")
	}
	for range 2 {
		if err := key.Unseal(second, text, own); err != nil {
			t.Fatal(err)
		}
	}
	b, err := OpenAuthority(second, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	token, err := a.Token(time.Now().Add(time.Hour), 1)
	if err != nil || b.Check(token, time.Now()) != nil {
		t.Errorf("the second server refuses a token of the first: %v", err)
	}
	beside, err := b.Identity("three", time.Now())
	if err != nil || beside.Accept(beside.own.Load().Certificate[0], a.Certificate().Raw) != nil {
		t.Errorf("the first authority does not verify a host of the second: %v", err)
	}
	text, err = foreign.Seal(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := key.Unseal(second, text, stranger); !errors.Is(err, pando.ErrExists) {
		t.Errorf("it replaces the authority of a cluster: %v", err)
	}
}

func damagedTextsStayShut(t *testing.T, k SealingKey, dir string, text []byte, own *Identity) {
	t.Helper()
	for n := range text {
		bad := append([]byte(nil), text...)
		bad[n] ^= 1
		if err := k.Unseal(dir, bad, own); err == nil {
			t.Fatalf("a text with a changed byte %d opens", n)
		}
	}
}

func TestADamagedSealingKeyIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sealing.key"), []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSealingKey(dir); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("a damaged key: %v", err)
	}
}

func TestAServerTokenMakesServersAndAdmitsOneHost(t *testing.T) {
	a, err := OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	plain, err := a.Token(now.Add(time.Hour), UsesMax)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.CheckServer(plain, now); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a token for hosts makes a server: %v", err)
	}
	token, err := a.ServerToken(now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Check(token, now), a.CheckServer(token, now)); err != nil {
		t.Error(err)
	}
	if err := a.CheckServer(token, now.Add(2*time.Hour)); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("an ended token makes a server: %v", err)
	}
	host, err := a.Use(token, now)
	if err != nil || host.Most != 1 {
		t.Errorf("%+v, %v", host, err)
	}
	server, err := a.UseServer(token, now)
	if err != nil || server.Most != 1 || server.Name == host.Name {
		t.Errorf("its use for a server is that for a host: %+v, %v", server, err)
	}
	if _, err := a.UseServer(plain, now); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("a token for hosts makes a server: %v", err)
	}
}

// handshake shakes hands over a pipe. It returns the error of the client, or else of the server,
// which verifies the client last.
func handshake(client, server *tls.Config) error {
	a, b := net.Pipe()
	defer a.Close()
	served := make(chan error, 1)
	go func() {
		defer b.Close()
		served <- tls.Server(b, server).Handshake()
	}()
	c := tls.Client(a, client)
	if err := c.Handshake(); err != nil {
		a.Close()
		<-served
		return err
	}
	_, _ = io.Copy(io.Discard, c) // until the server closes, with or without an alert
	return <-served
}

// The listener of the servers refuses every member, and renews with the identity.
func TestTheListenerOfServersAcceptsServersOnly(t *testing.T) {
	a, err := OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.Identity("", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	member, err := a.Identity("two", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := handshake(server.ToServer(), server.Servers()); err != nil {
		t.Errorf("a server is refused: %v", err)
	}
	if err := handshake(member.ToServer(), server.Servers()); err == nil {
		t.Error("a member is accepted")
	}
}
