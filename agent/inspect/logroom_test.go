package inspect

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/agent/records"
	"pando.run/pando/api/logs"
	"pando.run/pando/driver/sim"
)

// Callers that open logs and read nothing take the share of their tenant, and no more. A request of
// an operator has the reserve. Reading or closing a log gives its memory back.
func TestUnreadLogsOfATenantLeaveRoomForOthers(t *testing.T) {
	long := strings.Repeat("x", logsBytesMax)
	w := New(Inspector{Host: "h1", OpenLog: func(
		_ context.Context, _ pando.ServiceKey, i pando.InstanceID, q pando.LogQuery,
	) (pando.LogLines, error) {
		if q.Bytes < logBytesLeast || q.Bytes*64 > logsBytesMax {
			t.Fatalf("a log of 64 may have %d bytes", q.Bytes)
		}
		if len(long) == 0 {
			return logs.Slice([]pando.LogLine{{Instance: i, Text: "one"}}), nil
		}
		return logs.Slice([]pando.LogLine{{Instance: i, Text: long[:q.Bytes-64]}}), nil
	}})
	ids := make([]pando.InstanceID, 64)
	ask := func(ctx context.Context, tenant pando.Tenant) (pando.LogLines, error) {
		return w.Logs(ctx, pando.ServiceKey{Tenant: tenant, Name: "web"}, ids, pando.LogQuery{Lines: 100_000})
	}
	by := func(tenant pando.Tenant) context.Context {
		return access.WithToken(t.Context(), access.Token{TokenKey: access.TokenKey{Tenant: tenant}})
	}
	var open []pando.LogLines
	fill := func(tenant pando.Tenant) (n int64) {
		for {
			lines, err := ask(by(tenant), tenant)
			if err != nil {
				if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "read or end other logs") {
					t.Errorf("beyond the share of %s: %v", tenant, err)
				}
				return n
			}
			open, n = append(open, lines), n+logsBytesMax
		}
	}
	if n := fill("acme"); n != logBound.Each {
		t.Errorf("acme holds %d bytes", n)
	}
	for _, other := range []pando.Tenant{"bank", "coop"} {
		if n := fill(other); n != logBound.Each {
			t.Errorf("%s holds %d bytes", other, n)
		}
	}
	if n := fill("late"); n != 0 {
		t.Errorf("the reserve of operators gave %d bytes to a tenant", n)
	}
	lines, err := ask(t.Context(), "acme")
	if err != nil {
		t.Fatalf("an operator reads the logs of acme: %v", err)
	}
	for n := range len(ids) + 1 {
		if _, err := lines.Next(); (n < len(ids)) != (err == nil) {
			t.Errorf("line %d: %v", n, err)
		}
	}
	for _, one := range append(open, lines) {
		one.Close()
	}
	if u := w.room.pool.Use("acme"); u.All != 0 || u.Own != 0 {
		t.Errorf("after all are closed: %+v", u)
	}
	long = ""
	for n := range 100 { // lines that are few take little
		lines, err := ask(by("acme"), "acme")
		if err != nil {
			t.Fatalf("request %d for one line of each: %v", n, err)
		}
		defer lines.Close()
	}
}

// following is a followed log whose lines a test sends.
type following struct {
	ctx   context.Context
	lines chan pando.LogLine
}

func (f following) Next() (pando.LogLine, error) {
	select {
	case l := <-f.lines:
		return l, nil
	case <-f.ctx.Done():
		return pando.LogLine{}, io.EOF
	}
}

func (following) Unread() int64 { return 0 }
func (following) Close() error  { return nil }

// A followed log keeps its memory until it is closed, however many lines have arrived. Those of one
// tenant leave room for others.
func TestFollowedLogsOfATenantLeaveRoomForOthers(t *testing.T) { synctest.Test(t, followMany) }

func followMany(t *testing.T) {
	arrive := make(chan pando.LogLine) // of the newest request
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, long := New(Inspector{Host: "h1", Records: records.New(records.Config{}), Clock: sim.Clock{}, OpenLog: func(
		context.Context, pando.ServiceKey, pando.InstanceID, pando.LogQuery,
	) (pando.LogLines, error) {
		return following{ctx, arrive}, nil
	}}), strings.Repeat("x", logs.LineBytesMax)
	follow := func(tenant pando.Tenant) (pando.LogLines, error) {
		arrive = make(chan pando.LogLine)
		return w.Logs(access.WithToken(ctx, access.Token{TokenKey: access.TokenKey{Tenant: tenant}}),
			pando.ServiceKey{Tenant: tenant, Name: "web"}, make([]pando.InstanceID, 64),
			pando.LogQuery{Follow: true})
	}
	n := int64(0)
	for n <= logBound.Each/followBytes {
		lines, err := follow("acme")
		if err != nil {
			break
		}
		defer lines.Close()
		n += 64
		for range 2 * 64 {
			arrive <- pando.LogLine{Text: long}
			if _, err := lines.Next(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n != logBound.Each/followBytes {
		t.Errorf("acme follows %d logs, want %d", n, logBound.Each/followBytes)
	}
	other, err := follow("bank")
	if err != nil {
		t.Fatalf("another tenant: %v", err)
	}
	other.Close()
	if u := w.room.pool.Use("bank"); u.Own != 0 {
		t.Errorf("after the end bank holds %d", u.Own)
	}
}

// Searches of one tenant leave turns to others, and a caller that leaves waits no more.
func TestSearchesOfATenantLeaveTurnsForOthers(t *testing.T) { synctest.Test(t, searchMany) }

func searchMany(t *testing.T) {
	var reads atomic.Int32 // of acme
	begun, end := make(chan pando.Tenant), make(chan struct{})
	w := New(Inspector{Host: "h1", OpenLog: func(
		ctx context.Context, s pando.ServiceKey, _ pando.InstanceID, _ pando.LogQuery,
	) (pando.LogLines, error) {
		if s.Tenant == "acme" {
			reads.Add(1)
		}
		select {
		case begun <- s.Tenant:
			<-end
		case <-ctx.Done():
		}
		return logs.Slice(nil), nil
	}})
	search := func(ctx context.Context, tenant pando.Tenant) error {
		lines, err := w.Logs(access.WithToken(ctx, access.Token{TokenKey: access.TokenKey{Tenant: tenant}}),
			pando.ServiceKey{Tenant: tenant, Name: "web"}, make([]pando.InstanceID, 1), pando.LogQuery{Lines: 1})
		if err == nil {
			lines.Close()
		}
		return err
	}
	var all sync.WaitGroup
	for range readTurns.Each {
		all.Go(func() { _ = search(t.Context(), "acme") })
		<-begun
	}
	left, leave := context.WithCancel(t.Context())
	waits := make(chan error)
	go func() { waits <- search(left, "acme") }()
	synctest.Wait() // it has asked for its turn
	all.Go(func() { _ = search(t.Context(), "bank") })
	<-begun
	leave()
	if err := <-waits; !errors.Is(err, context.Canceled) || int(reads.Load()) != readTurns.Each {
		t.Errorf("acme reads %d logs at once; a caller that left: %v", reads.Load(), err)
	}
	close(end)
	all.Wait()
}

// A few bytes of repetitions make megabytes of program, for each log that a host reads.
func TestAnExpensiveExpressionForLogsIsRefused(t *testing.T) {
	for match, ok := range map[string]bool{
		"": true, "(?i)error|warn": true, `^\d{4}-\d{2}-\d{2} .{0,100}timeout`: true,
		strings.Repeat(".{1000}", 142): false, "(a{1,40}){1,60}": false, "[": false,
	} {
		if err := (pando.LogQuery{Lines: 1, Match: match}).Check(); (err == nil) != ok {
			t.Errorf("%.30q: %v", match, err)
		}
	}
}
