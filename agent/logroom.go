package agent

import (
	"context"
	"fmt"

	"pando.run/pando"
	"pando.run/pando/access/share"
	"pando.run/pando/api/logs"
)

// logBound is the memory for lines of logs that callers have asked for and not read yet. The caller
// pays: the tenant of its token, or the operators.
var logBound = share.Bound{Total: 256 << 20, Each: 64 << 20, Reserve: 64 << 20}

// The bytes of one request, and the least of one log among many.
const (
	logsBytesMax  = 16 << 20
	logBytesLeast = 16 << 10
)

// logsHeld counts the memory for lines by the tenants that asked.
type logsHeld = share.Pool[pando.Tenant]

func newLogsHeld() *logsHeld { return share.New[pando.Tenant](logBound) }

// needOf returns what a request about so many logs may take, with the bound of each log.
func needOf(q pando.LogQuery, n int) (need int64, each int) {
	each = max(logBytesLeast, logsBytesMax/max(1, n))
	if q.Lines < each/logs.LineBytesMax {
		each = q.Lines * logs.LineBytesMax
	}
	return int64(each) * int64(n), each
}

// holdLogs takes the memory for the lines of a request.
func (w *window) holdLogs(ctx context.Context, need int64) (*share.Hold[pando.Tenant], error) {
	take := w.held.TakeAsOperator
	if t, token := pando.TokenOf(ctx); token {
		take = func(n int64) (*share.Hold[pando.Tenant], error) { return w.held.Take(t.Tenant, n) }
	}
	hold, err := take(need)
	if err != nil {
		return nil, fmt.Errorf("lines of logs on host %s: %w; read or end other logs first, or ask for "+
			"fewer lines", w.agent.Host.Name, err)
	}
	return hold, nil
}

// unreadOf returns the memory of the lines that a log has at its beginning, or most if it does not say.
func unreadOf(lines pando.LogLines, most int) int64 {
	if l, ok := lines.(interface{ Unread() int64 }); ok {
		return l.Unread()
	}
	return int64(most)
}

// heldLines gives memory back as the caller reads the lines.
type heldLines struct {
	pando.LogLines
	hold *share.Hold[pando.Tenant]
}

// Next implements pando.LogLines.
func (h *heldLines) Next() (pando.LogLine, error) {
	l, err := h.LogLines.Next()
	if err == nil {
		h.hold.Shrink(l.Weight())
	}
	return l, err
}

// Close implements pando.LogLines.
func (h *heldLines) Close() error {
	h.hold.Close()
	return h.LogLines.Close()
}
