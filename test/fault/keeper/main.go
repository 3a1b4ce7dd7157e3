// Command keeper is the service of the fault tests, and the client that loads it. As a service it
// answers at once, stores lines in its state on request, and forwards requests to its own API. As a
// client it sends requests without a pause and prints a report. It never scales or leaves by
// itself.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	err := error(nil)
	if len(os.Args) == 3 && os.Args[1] == "load" {
		err = load(os.Args[2])
	} else {
		err = serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// own reaches the instance's own API.
var own = &http.Client{Timeout: 5 * time.Second,
	Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv("PANDO_SOCKET"))
	}}}

func ask(method, path, body string) (string, error) {
	q, err := http.NewRequest(method, "http://self/v1/self"+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	a, err := own.Do(q)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, a.Status, text)
	}
	return string(text), err
}

func serve() error {
	name := os.Getenv("PANDO_INSTANCE")
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	http.HandleFunc("/write",
		func(w http.ResponseWriter, r *http.Request) { answer(w, "", keep(r.FormValue("line"))) })
	http.HandleFunc("/ask", func(w http.ResponseWriter, r *http.Request) {
		text, err := ask(r.FormValue("method"), r.FormValue("path"), r.FormValue("body"))
		answer(w, text, err)
	})
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	go func() {
		for _, err := ask("POST", "/ready", ""); err != nil; _, err = ask("POST", "/ready", "") {
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return http.Serve(l, nil)
}

// keep writes a line and commits it, in two requests. The agent may die between them.
func keep(line string) error {
	if _, err := ask("PATCH", "/state/log", line); err != nil {
		return err
	}
	_, err := ask("POST", "/state/commit", "")
	return err
}

func answer(w http.ResponseWriter, text string, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	fmt.Fprint(w, text)
}

// Told is the client's report at its end.
type Told struct {
	Answered int
	Failed   []string      // each with its time
	Failing  time.Duration // from the first to the last of them
	Late     time.Duration // the worst delay of a timer, as a measure of the machine's load
	Acked    []string      // lines with an acknowledged commit
}

// pause is how long a client waits before it asks again.
const pause = 5 * time.Millisecond

// load requests the page over a new connection each time, and writes lines, until SIGTERM.
func load(address string) error {
	var mu sync.Mutex
	var told Told
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client := &http.Client{
		Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true},
	}
	get := func(path string) error {
		a, err := client.Get("http://" + address + path)
		if err != nil {
			return err
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		if err == nil && a.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", a.Status, text)
		}
		return err
	}
	var first time.Time // of the failures
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for ctx.Err() == nil {
				err := get("/")
				now := time.Now()
				mu.Lock()
				if told.Answered++; err != nil {
					told.Failed = append(told.Failed, now.Format("05.000 ")+err.Error())
					if first.IsZero() {
						first = now
					}
					told.Failing = now.Sub(first)
				}
				mu.Unlock()
				time.Sleep(pause)
				mu.Lock()
				told.Late = max(told.Late, time.Since(now)-pause)
				mu.Unlock()
			}
		})
	}
	workers.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			line := fmt.Sprintf("%s-%d-%d", os.Getenv("RUN"), os.Getpid(), n)
			if get("/write?line="+line) == nil {
				mu.Lock()
				told.Acked = append(told.Acked, line)
				mu.Unlock()
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	fmt.Println("loading")
	workers.Wait()
	return json.NewEncoder(os.Stdout).Encode(told)
}
