package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// entry is a line that waits until it is stored.
type entry struct {
	line string
	done chan error // takes one answer without a reader
}

// linesMax bounds the lines of one request to the book, and those that wait for the next.
const linesMax = 4096

// gather returns an entry and those that wait behind it, up to linesMax.
func gather(first entry, more <-chan entry) []entry {
	all := []entry{first}
	for len(all) < linesMax {
		select {
		case e := <-more:
			all = append(all, e)
		default:
			return all
		}
	}
	return all
}

func text(all []entry) string {
	var b strings.Builder
	for _, e := range all {
		b.WriteString(e.line)
		b.WriteByte('\n')
	}
	return b.String()
}

func answer(all []entry, err error) {
	for _, e := range all {
		e.done <- err
	}
}

// remote is the book of another service. Lines that arrive during a request to it go together with
// the next one.
type remote struct {
	url     string
	waiting chan entry
	client  http.Client
}

func newRemote(url string) *remote {
	r := &remote{url: strings.TrimSuffix(url, "/") + "/lines", waiting: make(chan entry, linesMax),
		client: http.Client{Timeout: 5 * time.Second,
			Transport: &http.Transport{IdleConnTimeout: idleMax / 3}}}
	go func() {
		for first := range r.waiting {
			all := gather(first, r.waiting)
			answer(all, r.send(text(all)))
		}
	}()
	return r
}

func (r *remote) send(lines string) error {
	resp, err := r.client.Post(r.url, "text/plain", strings.NewReader(lines))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the book answers %s", resp.Status)
	}
	return nil
}

// write returns once the book has stored a line. It ignores the context of the request, which ends
// when the site no longer reads from the client.
func (r *remote) write(line string) error {
	e := entry{line, make(chan error, 1)}
	r.waiting <- e
	return <-e.done
}
