package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// TestAClosedConnectionLeavesNoLine lets instances leave while a client sends one request after the
// other on a kept connection. A connection that ends without an answer must leave no line, because
// the client repeats the request elsewhere.
func TestAClosedConnectionLeavesNoLine(t *testing.T) {
	for range 1000 {
		s := newSite("a")
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = s.serve(l) }() // it ends with the listener
		answered := make(chan int)
		ready := make(chan struct{})
		go func() { answered <- ask(t, l.Addr().String(), ready) }()
		<-ready
		s.letGo()
		n := <-answered
		_ = s.server.Close()
		if lines := len(s.take()); lines != n {
			t.Fatalf("%d requests were answered, and %d have a line", n, lines)
		}
	}
}

// ask sends requests on one connection until the server closes it, and returns the number of
// answers. It closes ready after two answers.
func ask(t *testing.T, address string, ready chan struct{}) (answered int) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		close(ready)
		return 0
	}
	defer c.Close()
	read := bufio.NewReader(c)
	for {
		_, wrote := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		answer, err := http.ReadResponse(read, nil)
		if err != nil {
			if !errors.Is(err, io.ErrUnexpectedEOF) { // a reset looks like a broken connection
				t.Errorf("write %v, read %v", wrote, err)
			}
			return answered
		}
		_, _ = io.Copy(io.Discard, answer.Body) // the next answer shows an error
		if answered++; answered == 2 {
			close(ready)
		}
		if answer.Close {
			return answered
		}
	}
}
