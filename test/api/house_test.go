// Package api checks both HTTP contracts over the real control and a real agent. Only the kernel is
// simulated.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent"
	"pando.run/pando/api"
	"pando.run/pando/api/logs"
	"pando.run/pando/control"
	"pando.run/pando/driver/sim"
)

// patience is how long a test waits for any condition.
const patience = 20 * time.Second

// house is one cluster of one host, with both of its contracts served.
type house struct {
	testing.TB
	registry *sim.Registry
	control  *control.Control
	agent    *agent.Agent
	http     *httptest.Server
}

// prober reports every instance as healthy.
type prober struct{}

func (prober) Probe(context.Context, pando.Probe, pando.Sandbox, pando.Port) error { return nil }

func open(t testing.TB) *house {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &house{TB: t, registry: sim.NewRegistry(1, 0)}
	peers, steering, ids, log := sim.NewPeers(), sim.NewSteering(), &sim.IDs{},
		slog.New(slog.DiscardHandler)
	h.control = control.New(control.Config{
		Registry: h.registry, Peers: peers, Clock: sim.Clock{}, IDs: ids, Log: log, Name: "h1",
	})
	stays := func(ctx context.Context, _ *sim.Sandbox) int {
		<-ctx.Done()
		return 0
	}
	host := pando.Host{Name: "h1", Endpoint: "sim", CPUs: 2, Memory: 1 << 30,
		Runs: true}
	host.Instances4, host.Instances6 = pando.InstanceRange(0)
	h.agent = agent.New(agent.Config{
		Host: host, Clock: sim.Clock{}, IDs: ids, Log: log, Peers: peers,
		Server: agent.Server{Registry: h.registry},
		Programs: agent.Programs{Sandboxes: sim.NewSandboxes(1, stays, 0, 0, steering), Prober: prober{},
			Serve: api.SelfHandler,
			OpenLog: func(
				_ context.Context, _ pando.ServiceKey, i pando.InstanceID, _ pando.LogQuery,
			) (pando.LogLines, error) {
				l := pando.LogLine{At: time.Unix(1, 0), Instance: i, Text: "a line of " + string(i)}
				return logs.Slice([]pando.LogLine{l}), nil
			}},
		Packets: agent.Packets{Steering: steering},
		States:  agent.States{Objects: sim.NewObjects()},
	})
	peers.Set("h1", h.agent.HostAgent())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{h.control.Run, h.agent.Run} {
		wg.Go(func() { _ = run(ctx) })
	}
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	ready := func(ctx context.Context) error {
		_, err := h.registry.Snapshot(ctx, pando.Root)
		return err
	}
	h.http = httptest.NewServer(api.OperatorsHandler(h.control, ready))
	t.Cleanup(h.http.Close)
	h.await("a host", func() bool { hosts, _ := h.control.Hosts(ctx); return len(hosts) == 1 })
	return h
}

func (h *house) await(what string, holds func() bool) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	for !holds() {
		if pando.Sleep(ctx, sim.Clock{}, time.Millisecond) != nil {
			h.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// answer is the response to a request.
type answer struct {
	testing.TB
	status int
	header http.Header
	body   string
}

// ask sends a request to a contract. Headers come in pairs.
func ask(t testing.TB, base, method, path, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, base, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	// A client would clean up the path; this request sends it unchanged.
	at, query, _ := strings.Cut(path, "?")
	r.URL.Path, r.URL.RawQuery = at, query
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{t, resp.StatusCode, resp.Header, string(b)}
}

func (h *house) ask(method, path, body string, headers ...string) answer {
	h.Helper()
	return ask(h.TB, h.http.URL, method, path, body, headers...)
}

// read decodes the answer's body.
func read[T any](a answer) (v T) {
	a.Helper()
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		a.Fatalf("the answer %d %q: %v", a.status, a.body, err)
	}
	return v
}

const web = `{"name": "web", "command": ["./web"],
	"ports": [{"published": 80, "target": 8080, "protocol": "tcp"}],
	"health": {"ready": {"kind": "tcp", "port": 8080}},
	"scale": {"min": 1, "max": 4}, "state": {"hits": "counter"}}`

// serving deploys web and waits until it serves.
func (h *house) serving() pando.ServiceStatus {
	h.Helper()
	if a := h.ask("POST", "/v1/services", web); a.status != http.StatusOK {
		h.Fatalf("deploy: %d %s", a.status, a.body)
	}
	var st pando.ServiceStatus
	h.await("web to serve", func() bool {
		st = read[pando.ServiceStatus](h.ask("GET", "/v1/services/web", ""))
		return st.Phase == pando.ServiceServing
	})
	return st
}

// self serves the contract of an instance, as its own socket would.
func (h *house) self(i pando.InstanceID) string {
	s := httptest.NewServer(api.SelfHandler(h.agent.Self(), i))
	h.Cleanup(s.Close)
	return s.URL
}
