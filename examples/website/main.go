// Command website serves one page and scales itself. It measures its own load every 100 ms and asks
// Pando for a copy of itself when the load is too high. It leaves when it is no longer needed.
//
// Every request adds one line to the access log and 1 to a counter. Both are state of the service:
// each instance writes to its own branch, and the branches are merged.
//
// With WEBSITE_BOOK the website has no state, so it can spread over hosts. It sends its lines to
// the service at that address, which is this program with the argument "book". A request is
// answered once the book has its line.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"pando.run/sdk"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	serve := run
	if len(os.Args) > 1 && os.Args[1] == "book" {
		serve = keepBook
	}
	if err := serve(ctx); err != nil {
		log.Fatal("website: ", err)
	}
}

func run(ctx context.Context) error {
	high, err := number("WEBSITE_HIGH", 600)
	if err != nil {
		return err
	}
	low, err := number("WEBSITE_LOW", 150)
	if err != nil {
		return err
	}
	if 2*low > high {
		return fmt.Errorf("WEBSITE_LOW=%g must be at most half of WEBSITE_HIGH=%g, or one instance "+
			"leaves and the next asks for it again", low, high)
	}
	self, err := pando.Open()
	if err != nil {
		return err
	}
	s := newSite(self.Instance)
	if url := os.Getenv("WEBSITE_BOOK"); url != "" {
		s.remote = newRemote(url)
	}
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	self.Spread(ctx, &s.server) // clients that keep their connections reach new instances
	failed := make(chan error, 1)
	go func() { failed <- s.serve(listener) }()
	book := &book{site: s, state: self.State()} // with nothing to write if there is a remote one
	scaler := &scaler{self: self, site: s, high: high, low: low}
	events := make(chan string)
	go listen(ctx, self, events)
	if err := self.Ready(ctx); err != nil {
		return err
	}
	every := time.NewTicker(window)
	defer every.Stop()
	for {
		select {
		case err := <-failed:
			return err
		// SIGTERM: the instance is out of rotation and no flow is open.
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			return book.close(ctx)
		case kind := <-events:
			switch kind {
			// An operator or a rollout took the instance out of rotation.
			case pando.Halted:
				s.letGo()
			case pando.Drained:
				if err := book.close(ctx); err != nil {
					return err
				}
				return self.Die(ctx, pando.Ask{Reason: "drained, and its state is pushed"})
			}
		case <-every.C:
			if err := book.write(ctx); err != nil {
				log.Print("write state: ", err) // the agent is away; the lines wait for the next tick
			}
			if !s.leaving.Load() && scaler.look(ctx) {
				s.letGo()
			}
		}
	}
}

// listen passes the events of this instance to the channel.
func listen(ctx context.Context, self *pando.Self, events chan<- string) {
	for e := range self.Events(ctx) {
		select {
		case events <- e.Kind:
		case <-ctx.Done():
		}
	}
}

// number reads a number from the environment.
func number(name string, otherwise float64) (float64, error) {
	text := os.Getenv(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s=%q: want a number above 0", name, text)
	}
	return n, nil
}

// refused reports whether Pando refused, which is an answer and not a failure.
func refused(err error) bool {
	return errors.Is(err, pando.ErrRefused) || errors.Is(err, pando.ErrPending)
}
