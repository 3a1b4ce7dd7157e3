package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestHAProxyTakesTheConfiguration(t *testing.T) {
	two := []server{{"peer-1", "127.0.0.1:8081"}, {"peer-2", "127.0.0.1:8082"}}
	for _, servers := range [][]server{nil, two} {
		dir := t.TempDir()
		text, err := render(filepath.Join(dir, "haproxy.sock"), servers)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(text, " server peer-"); n != 2*len(servers) {
			t.Errorf("%d lines of servers, want each of %v twice:\n%s", n, servers, text)
		}
		file := filepath.Join(dir, "haproxy.cfg")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("/usr/sbin/haproxy", "-c", "-f", file).CombinedOutput(); err != nil {
			t.Errorf("%v: %s\n%s", err, out, text)
		}
	}
}

func TestAProgramAnswersOrNot(t *testing.T) {
	code := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
	}))
	one := sidekick{address: s.Listener.Addr().String(), every: 30 * time.Second}
	if !one.answers(t.Context()) {
		t.Error("a program that answers does not count as up")
	}
	code = http.StatusServiceUnavailable
	if one.answers(t.Context()) {
		t.Error("a program that answers 503 counts as up")
	}
	s.Close()
	if one.answers(t.Context()) {
		t.Error("a closed port counts as up")
	}
}

func TestOtherWordsAreRefused(t *testing.T) {
	for _, args := range [][]string{
		nil, {"sidekick"}, {"confd", "http://127.0.0.1:1"}, {"stop", "a", "b"},
	} {
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), "want sidekick") {
			t.Errorf("%q gives %v", args, err)
		}
	}
}
