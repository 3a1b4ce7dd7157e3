package daemon

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api"
)

func TestLinesOfTheLogAreCounted(t *testing.T) {
	var n lineCounts
	log := slog.New(lineCounter{slog.NewTextHandler(io.Discard, nil), &n}).With("role", "agent")
	log.Info("one")
	log.Warn("two")
	log.WithGroup("g").Error("three", "k", 1)
	log.Error("four")
	if got := n.figures(); got != (pando.LogFigures{Warnings: 1, Errors: 2}) {
		t.Errorf("%+v", got)
	}
}

// The server forwards a scrape of its host to the agent, and names the next command without one.
func TestTheServerForwardsAScrapeOfItsHost(t *testing.T) {
	var p place
	p.Run = t.TempDir()
	h := withHostMetrics(p, http.NotFoundHandler())
	scrape := func() (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", api.HostMetricsPath, http.NoBody))
		return w.Code, w.Body.String()
	}
	if code, text := scrape(); code != 503 || !strings.Contains(text, "`pando up`") {
		t.Errorf("without an agent: %d %s", code, text)
	}
	l, err := net.Listen("unix", p.agent())
	if err != nil {
		t.Fatal(err)
	}
	agent := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the agent at "+r.URL.Path)
	})}
	go func() { _ = agent.Serve(l) }()
	t.Cleanup(func() { agent.Close() })
	if code, text := scrape(); code != 200 || text != "the agent at "+api.HostMetricsPath {
		t.Errorf("%d %s", code, text)
	}
}
