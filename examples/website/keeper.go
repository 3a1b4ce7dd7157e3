package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"pando.run/sdk"
)

const (
	bodyMax     = 4 << 20               // bytes of one request to the book
	commitEvery = 10 * time.Millisecond // lines of this time are one commit
	// A connection of a dead host would hold up the drain. Websites close theirs earlier.
	idleMax = 3 * time.Second
)

// keeper is the book of a website on several hosts: a service of one instance with the state.
type keeper struct {
	book    book
	waiting chan entry
}

// ServeHTTP stores the lines of a request and answers once they are durable.
func (k *keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyMax))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e := entry{strings.TrimSuffix(string(b), "\n"), make(chan error, 1)}
	k.waiting <- e
	if err := <-e.done; err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// store commits the lines that wait.
func (k *keeper) store(ctx context.Context, first entry) {
	all := gather(first, k.waiting)
	err := k.book.commit(ctx, strings.Split(strings.TrimSuffix(text(all), "\n"), "\n"))
	k.book.dirty = k.book.dirty || err == nil
	answer(all, err)
}

// keepBook serves the book until an operator ends it.
func keepBook(ctx context.Context) error {
	self, err := pando.Open()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", ":8081")
	if err != nil {
		return err
	}
	k := &keeper{book: book{state: self.State()}, waiting: make(chan entry, linesMax)}
	server := http.Server{Handler: k, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleMax,
		ConnState: abrupt}
	go func() {
		if err := server.Serve(l); err != http.ErrServerClosed {
			log.Print("serve: ", err)
			os.Exit(1)
		}
	}()
	events := make(chan string)
	go listen(ctx, self, events)
	if err := self.Ready(ctx); err != nil {
		return err
	}
	return k.loop(ctx, self, events)
}

func (k *keeper) loop(ctx context.Context, self *pando.Self, events <-chan string) error {
	last := time.Now()
	push := time.NewTicker(pushEvery)
	defer push.Stop()
	for {
		select {
		case first := <-k.waiting:
			time.Sleep(commitEvery - time.Since(last))
			last = time.Now()
			k.store(ctx, first)
		case <-push.C:
			if k.book.dirty {
				if err := k.book.push(ctx); err != nil {
					log.Print("push state: ", err)
				}
			}
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			return k.book.push(ctx)
		case kind := <-events:
			if kind != pando.Drained {
				continue
			}
			if err := k.book.push(ctx); err != nil {
				return err
			}
			return self.Die(ctx, pando.Ask{Reason: "drained, and its state is pushed"})
		}
	}
}

// abrupt lets a connection end with a reset: an orderly end would wait for a dead host.
func abrupt(c net.Conn, state http.ConnState) {
	if tcp, ok := c.(*net.TCPConn); ok && state == http.StateNew {
		_ = tcp.SetLinger(0) // it then ends in order, later
	}
}
