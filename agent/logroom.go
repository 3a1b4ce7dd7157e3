package agent

import (
	"context"

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

// logRoom counts the memory for lines by the tenants that asked.
type logRoom struct{ pool *share.Pool[pando.Tenant] }

func newLogRoom() logRoom { return logRoom{share.New[pando.Tenant](logBound)} }

// needOf returns what a request about so many logs may take, with the bound of each log.
func needOf(q pando.LogQuery, n int) (need int64, each int) {
	each = max(logBytesLeast, logsBytesMax/max(1, n))
	if q.Lines < each/logs.LineBytesMax {
		each = q.Lines * logs.LineBytesMax
	}
	return int64(each) * int64(n), each
}

// take takes the memory for the lines of a request.
func (r logRoom) take(ctx context.Context, need int64) (*share.Hold[pando.Tenant], error) {
	if t, token := pando.TokenOf(ctx); token {
		return r.pool.Take(t.Tenant, need)
	}
	return r.pool.TakeAsOperator(need)
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
