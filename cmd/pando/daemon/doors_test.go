package daemon

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control"
	"pando.run/pando/driver/cluster/trust"
)

// serves runs a handler in the same way as the server does for other hosts.
func serves(t *testing.T, h http.Handler) (at string, a *trust.Authority) {
	t.Helper()
	a, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i, err := a.Identity("", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l, err := listenTLS("127.0.0.1:0", i.Anybody())
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return l.Addr().String(), a
}

func patiently(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// A stranger that never finishes its request holds a connection for seconds only. A thousand
// strangers hold no more connections than the bound.
func TestStrangersAreNotWaitedFor(t *testing.T) {
	begun := make(chan struct{}, 1)
	at, _ := serves(t, forStrangers(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
	}), 100*time.Millisecond))
	c, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	patiently(t, c)
	fmt.Fprintf(c, "POST /peer/join HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{")
	<-begun
	began := time.Now()
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an unfinished body was waited for longer than %s", time.Since(began))
	}
}

func TestAnAddressHasSoManyConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	crowd := bounded(l)
	defer crowd.Close()
	in := make(chan net.Conn, strangerConnections.Each+1)
	go func() {
		for {
			c, err := crowd.Accept()
			if err != nil {
				return
			}
			in <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return patiently(t, c)
	}
	var first net.Conn
	for n := range int(strangerConnections.Each) {
		dial()
		if c := <-in; n == 0 {
			first = c
		}
	}
	if _, err := dial().Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection %d is let in: %v", int(strangerConnections.Each)+1, err)
	}
	first.Close()
	first.Close() // closing twice frees only one place
	dial()
	<-in
	if _, err := dial().Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that was closed twice made room for two: %v", err)
	}
}

// The token comes before the body. The server does not read the body of a request without a token.
func TestAJoinWithoutATokenIsAnsweredAtOnce(t *testing.T) {
	ca, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a := admission{control: control.New(control.Config{}), authority: ca}
	at, _ := serves(t, welcome(promotion{admission: a}, newDoorkeeper(nil), http.NotFoundHandler()))
	other, err := trust.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Token(time.Now().Add(time.Hour), 1)
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]int{"": 400, "pando1abc": 400, foreign: 403} {
		c, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		patiently(t, c)
		fmt.Fprintf(c, "POST /peer/join HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
			"Content-Length: 60000\r\n\r\n{", token)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("token %q: %v", token, err)
		}
		if resp.StatusCode != want || !resp.Close {
			t.Errorf("token %q: %s, want %d and the end of the connection", token, resp.Status, want)
		}
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("token %q: the connection stays", token)
		}
	}
	if _, err := newDoorkeeper(nil).member(t.Context(), nil); !errors.Is(err, pando.ErrForbidden) {
		t.Errorf("no certificate: %v", err)
	}
}

func TestAReaderThatTakesNothingEndsItsConnection(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	c := &impatient{a, 20 * time.Millisecond}
	if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write without a reader: %v", err)
	}
	go func() { _, _ = io.Copy(io.Discard, b) }()
	patient := &impatient{a, time.Minute}
	for range 3 {
		if _, err := patient.Write([]byte("x")); err != nil {
			t.Errorf("it reads: %v", err)
		}
	}
}
