package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/store/etcd"
)

// logged counts the lines of this process's log.
var logged lineCounts

type lineCounts struct{ warnings, errors atomic.Uint64 }

func (l *lineCounts) figures() pando.LogFigures {
	return pando.LogFigures{Warnings: l.warnings.Load(), Errors: l.errors.Load()}
}

// lineCounter counts the lines that pass to a log.
type lineCounter struct {
	slog.Handler
	to *lineCounts
}

// Handle implements slog.Handler.
func (c lineCounter) Handle(ctx context.Context, r slog.Record) error {
	switch {
	case r.Level >= slog.LevelError:
		c.to.errors.Add(1)
	case r.Level >= slog.LevelWarn:
		c.to.warnings.Add(1)
	}
	return c.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (c lineCounter) WithAttrs(a []slog.Attr) slog.Handler {
	return lineCounter{c.Handler.WithAttrs(a), c.to}
}

// WithGroup implements slog.Handler.
func (c lineCounter) WithGroup(name string) slog.Handler {
	return lineCounter{c.Handler.WithGroup(name), c.to}
}

// processFigures returns the figures of a server's process: its store and its log.
func processFigures(store *etcd.Server) func(*pando.ServerFigures) {
	return func(f *pando.ServerFigures) { f.Store, f.Log = store.Size(), logged.figures() }
}

// withHostMetrics adds the metrics of this host, from its agent, to the API of the server.
func withHostMetrics(p place, face http.Handler) http.Handler {
	to := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", p.agent())
	}}
	return api.WithHostMetrics(face, &httputil.ReverseProxy{
		Transport: to,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "agent"}) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			peer.Refuse(w, fmt.Errorf("%w: the agent of this host does not answer (%w); `pando up` "+
				"starts it", pando.ErrUnavailable, err))
		},
	})
}
