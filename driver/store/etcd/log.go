package etcd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// quiet returns a logger for etcd. It logs errors as errors and warnings at the debug level.
func quiet(log *slog.Logger) *zap.Logger { return zap.New(slogCore{log: log.With("from", "etcd")}) }

// slogCore writes etcd's zap entries to a slog.Logger.
type slogCore struct{ log *slog.Logger }

func level(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelError
	}
	return slog.LevelDebug
}

func (c slogCore) Enabled(l zapcore.Level) bool {
	return l > zapcore.InfoLevel && c.log.Enabled(context.Background(), level(l))
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{log: c.log.With(attrs(fields)...)}
}

func (c slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	l := level(e.Level)
	if isBirth(fields) || isEnd(fields) {
		l = slog.LevelDebug
	}
	c.log.Log(context.Background(), l, e.Message, attrs(fields)...)
	return nil
}

// isBirth reports the harmless error of a new store: etcd reads its layout version before the first
// entry sets it, then retries.
func isBirth(fields []zapcore.Field) bool {
	for _, f := range fields {
		err, ok := f.Interface.(error)
		if ok && strings.HasPrefix(err.Error(), "cannot detect storage schema version: missing ") {
			return true
		}
	}
	return false
}

// isEnd reports the harmless error of a store that is closed during its start: its listener is
// closed.
func isEnd(fields []zapcore.Field) bool {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && errors.Is(err, net.ErrClosed) {
			return true
		}
	}
	return false
}

func (slogCore) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	m := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(m)
	}
	out := make([]any, 0, 2*len(m.Fields))
	for k, v := range m.Fields {
		out = append(out, slog.Any(k, v))
	}
	return out
}
