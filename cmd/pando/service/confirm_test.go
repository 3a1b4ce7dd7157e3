package service

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api/problem"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// A host that steers around another one, or lacks a published port, is named, and the command does
// not end with 0.
func TestAWaitCarriesTheNoOfEachHost(t *testing.T) {
	const why = "web: port 9090 belongs to nginx"
	for name, c := range map[string]struct {
		host pando.HostSteering
		says string
		code int
	}{
		"whole": {pando.HostSteering{Host: "two", Confirmed: true}, "", 0},
		"a part is left out": {pando.HostSteering{Host: "two", Confirmed: true, Partly: true,
			Reason: why}, why, 7},
		"a token sees no name": {pando.HostSteering{Confirmed: true, Partly: true}, "1 host has not", 7},
		"not confirmed": {pando.HostSteering{Host: "two", Reason: "late"}, "host two has not confirmed",
			7},
	} {
		env, out := consoletest.Answering(t, map[string]any{"GET /v1/steering": []pando.HostSteering{
			{Host: "one", Confirmed: true}, c.host}})
		o := console.Open(&cli.Output{Env: env})
		all := []deployed{{}}
		all[0].ServiceKey = pando.DefaultService("web")
		confirming{console: o}.all(t.Context(), all)
		if got := cli.CodeOf(unsteered(all...)); got != c.code {
			t.Errorf("%s: exit code %d, want %d", name, got, c.code)
		}
		if !strings.Contains(out.String(), c.says) || (c.says == "") != (out.String() == "") {
			t.Errorf("%s: printed %q, want %q", name, out.String(), c.says)
		}
	}
}

// Without an answer about the steering, a wait does not end with 0. A service that is gone has none.
func TestAWaitWithoutAnAnswerAboutTheSteeringSaysSo(t *testing.T) {
	for _, c := range []struct {
		sentinel error
		want     string
	}{{pando.ErrUnavailable, "is not known: "}, {pando.ErrNotFound, ""}} {
		socket := filepath.Join(t.TempDir(), "api.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			p, _ := problem.Of(c.sentinel)
			w.WriteHeader(p.Status)
			_ = json.NewEncoder(w).Encode(map[string]any{"status": p.Status, "code": p.Code, "detail": "late"})
		})) // until the socket is closed
		getenv := func(name string) string { return map[string]string{"PANDO_API": socket}[name] }
		o := console.Open(&cli.Output{Env: cli.Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: getenv}})
		all := []deployed{{}}
		all[0].ServiceKey = pando.DefaultService("web")
		confirming{console: o}.all(t.Context(), all)
		if err := all[0].err; (err == nil) != (c.want == "") || err != nil &&
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.sentinel, err)
		}
	}
}
