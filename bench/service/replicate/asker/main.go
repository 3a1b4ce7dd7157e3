// Command asker is a service that asks on request and reports the duration of the answer. It
// answers
//
// GET  /           its instance's name
// POST /replicate  asks for a copy of itself: {"began": unix nanoseconds, "took": nanoseconds}
// POST /describe   reads /v1/self, and answers likewise
// POST /halt       asks to leave the rotation
// POST /die        answers with the time, then gives itself up
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

var self = http.Client{
	Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv("PANDO_SOCKET"))
	}}}

// ask asks the host. It returns the start of the ask and its duration.
func ask(verb string) (began time.Time, took time.Duration, err error) {
	began = time.Now()
	answer, err := self.Post("http://self/v1/self/"+verb, "", nil)
	if err != nil {
		return began, 0, err
	}
	took = time.Since(began)
	return began, took, finish(verb, answer)
}

// describe reads the instance's own view, all of it.
func describe() (began time.Time, took time.Duration, err error) {
	began = time.Now()
	answer, err := self.Get("http://self/v1/self")
	if err != nil {
		return began, 0, err
	}
	err = finish("describe", answer)
	return began, time.Since(began), err
}

// finish reads an answer to its end and returns its error.
func finish(verb string, answer *http.Response) (err error) {
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", verb, text)
	}
	return err
}

func reply(w http.ResponseWriter, began time.Time, took time.Duration, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	text, _ := json.Marshal(map[string]int64{"began": began.UnixNano(), "took": int64(took)})
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text)
	// Flushes the whole answer, because the process may die next.
	_ = http.NewResponseController(w).Flush()
}

func main() {
	name := os.Getenv("PANDO_INSTANCE")
	http.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) })
	for _, verb := range []string{"replicate", "halt"} {
		http.HandleFunc("POST /"+verb, func(w http.ResponseWriter, _ *http.Request) {
			began, took, err := ask(verb)
			reply(w, began, took, err)
		})
	}
	http.HandleFunc("POST /describe", func(w http.ResponseWriter, _ *http.Request) {
		began, took, err := describe()
		reply(w, began, took, err)
	})
	http.HandleFunc("POST /die", func(w http.ResponseWriter, _ *http.Request) {
		began := time.Now()
		reply(w, began, 0, nil)
		go func() {
			if _, _, err := ask("die"); err != nil {
				log.Print(err)
			}
		}()
	})
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		log.Fatal(err)
	}
	if os.Getenv("PANDO_SOCKET") != "" {
		go func() {
			if _, _, err := ask("ready"); err != nil {
				log.Fatal(err)
			}
		}()
	}
	log.Fatal(http.Serve(l, nil))
}
