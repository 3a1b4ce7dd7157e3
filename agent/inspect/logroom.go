package inspect

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/share"
	"pando.run/pando/access/turns"
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

// followBytes is the memory of a followed log until it is closed: its buffer, and a line on its
// way.
const followBytes = 2 * logs.LineBytesMax

// readTurns is how many requests read logs of a host at once. A search goes through whole files.
var readTurns = turns.Bound{Total: 6, Each: 2, Reserve: 2, Waiting: 100}

// logRoom counts the memory for lines by the tenants that asked, and gives them turns to read.
type logRoom struct {
	pool  *share.Pool[pando.Tenant]
	turns *turns.Queue[pando.Tenant]
}

func newLogRoom() logRoom {
	return logRoom{share.New[pando.Tenant](logBound), turns.New[pando.Tenant](readTurns)}
}

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
	if t, token := access.TokenOf(ctx); token {
		return r.pool.Take(t.Tenant, need)
	}
	return r.pool.TakeAsOperator(need)
}

// turn waits for a turn to read logs.
func (r logRoom) turn(ctx context.Context) (done func(), err error) {
	if t, token := access.TokenOf(ctx); token {
		return r.turns.Take(ctx, t.Tenant, nil)
	}
	return r.turns.TakeAsOperator(ctx, nil)
}

// followOf returns the memory that so many logs keep while they are followed.
func followOf(q pando.LogQuery, n int) int64 {
	if !q.Follow {
		return 0
	}
	return followBytes * int64(n)
}

// unreadOf returns the memory of the lines that a log has at its beginning, or most if it does not
// say.
func unreadOf(lines pando.LogLines, most int) int64 {
	if l, ok := lines.(interface{ Unread() int64 }); ok {
		return l.Unread()
	}
	return int64(most)
}

// heldLines gives memory back as the caller reads the lines that a log had at its beginning.
type heldLines struct {
	pando.LogLines
	hold   *share.Hold[pando.Tenant]
	unread int64
}

// Next implements pando.LogLines.
func (h *heldLines) Next() (pando.LogLine, error) {
	l, err := h.LogLines.Next()
	if err == nil {
		n := min(l.Weight(), h.unread)
		h.unread -= n
		h.hold.Shrink(n)
	}
	return l, err
}

// Close implements pando.LogLines.
func (h *heldLines) Close() error {
	h.hold.Close()
	return h.LogLines.Close()
}
