// Command echo is the program that tests run as a service, and the client of that service. As a
// service it answers HTTP on 8080 and UDP on 7007. As a client it holds a connection, sends a
// datagram, looks up a name or serves images. On request it calls Pando as its own instance.
//
// It never ends by itself, except on request.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	var err error
	switch verb {
	case "":
		err = serve()
	case "hold":
		err = hold(os.Args[2])
	case "udp":
		err = datagram(os.Args[2], os.Args[3])
	case "lookup":
		err = lookup(os.Args[2], os.Args[3])
	case "registry":
		err = registry(os.Args[2])
	default:
		err = fmt.Errorf("echo: want no argument, hold ADDRESS, udp ADDRESS TEXT, lookup NAME SERVER "+
			"or registry FOLDER, got %q", verb)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve runs the service.
func serve() error {
	name, text := os.Getenv("PANDO_INSTANCE"), os.Getenv("TEXT")
	fmt.Println("hello from", name)
	// It listens by UDP before it listens by TCP, which makes it ready.
	datagrams, err := net.ListenPacket("udp", ":7007")
	if err != nil {
		return err
	}
	go echoUDP(datagrams, name)
	var f faults
	if share, err := strconv.ParseFloat(os.Getenv("ERRORS"), 64); err == nil {
		f.share = share
		go f.report()
	}
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		if f.next() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprintf(w, "%s %s\n", name, text)
	})
	http.HandleFunc("/from", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, r.RemoteAddr)
	})
	http.HandleFunc("/print", func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.FormValue("text"))
	})
	http.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) {
		os.Exit(number(r, "code"))
	})
	http.HandleFunc("/eat", eat)
	http.HandleFunc("/size", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, min(max(0, number(r, "bytes")), sizeMax)))
	})
	http.HandleFunc("/get", func(w http.ResponseWriter, r *http.Request) {
		pass(w, r.Context(), r.FormValue("url"))
	})
	http.HandleFunc("/self", func(w http.ResponseWriter, r *http.Request) {
		self(w, r.Context(), r.FormValue("path"), r.FormValue("body"))
	})
	http.HandleFunc("/lookup", func(w http.ResponseWriter, r *http.Request) {
		found, err := net.DefaultResolver.LookupHost(r.Context(), r.FormValue("name"))
		answer(w, strings.Join(found, " "), err)
	})
	return http.ListenAndServe(":8080", nil)
}

const sizeMax = 16 << 20 // bytes of an answer of /size

func answer(w http.ResponseWriter, text string, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	fmt.Fprintln(w, text)
}

func number(r *http.Request, name string) int {
	n, _ := strconv.Atoi(r.FormValue(name))
	return n
}

var eaten [][]byte

// eat takes megabytes of memory and keeps them.
func eat(w http.ResponseWriter, r *http.Request) {
	for range number(r, "mb") {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i) // touched, and not all zeros
		}
		eaten = append(eaten, b)
	}
	fmt.Fprintln(w, len(eaten))
}

// self sends a request to Pando as its own instance.
func self(w http.ResponseWriter, ctx context.Context, path, body string) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv("PANDO_SOCKET"))
	}
	c := http.Client{Transport: &http.Transport{DialContext: dial}}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://self"+path,
		strings.NewReader(body))
	if err != nil {
		answer(w, "", err)
		return
	}
	a, err := c.Do(q)
	if err != nil {
		answer(w, "", err)
		return
	}
	defer a.Body.Close()
	w.WriteHeader(a.StatusCode)
	_, _ = io.Copy(w, a.Body)
}

// pass answers with the page of another server.
func pass(w http.ResponseWriter, ctx context.Context, url string) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		answer(w, "", err)
		return
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		answer(w, "", err)
		return
	}
	defer a.Body.Close()
	_, _ = io.Copy(w, a.Body)
}

func echoUDP(c net.PacketConn, name string) {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo([]byte(name+" "+string(b[:n])), from)
	}
}

// hold sends a request every few milliseconds over one connection, until SIGTERM. A broken
// connection is an error.
func hold(address string) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	var stopped atomic.Bool
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; stopped.Store(true) }()
	r, last := bufio.NewReader(c), ""
	for n := 1; ; n++ {
		if stopped.Load() {
			fmt.Printf("held: %d answers, the last %s\n", n-1, last)
			return nil
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", address); err != nil {
			return fmt.Errorf("broken at request %d: %w", n, err)
		}
		a, err := http.ReadResponse(r, nil)
		if err != nil {
			return fmt.Errorf("broken at answer %d: %w", n, err)
		}
		body, err := io.ReadAll(a.Body)
		if err != nil {
			return fmt.Errorf("broken at answer %d: %w", n, err)
		}
		if last = strings.TrimSpace(string(body)); n == 1 {
			fmt.Println("holding", last)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// datagram sends a text and prints the answer. A datagram may be lost, so it tries a few times.
func datagram(address, text string) error {
	c, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	b := make([]byte, 2048)
	for range 5 {
		_ = c.SetDeadline(time.Now().Add(time.Second)) // of this attempt: an old one fails the write
		if _, err = c.Write([]byte(text)); err != nil {
			continue
		}
		var n int
		if n, err = c.Read(b); err == nil {
			fmt.Println(string(b[:n]))
			return nil
		}
	}
	return err
}

// lookup asks one DNS server for a name.
func lookup(name, server string) error {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn,
		error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(server, "53"))
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	found, err := r.LookupHost(ctx, name)
	fmt.Println(strings.Join(found, " "))
	return err
}
