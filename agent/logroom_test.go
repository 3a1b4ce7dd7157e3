package agent

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api/logs"
)

// Callers that open logs and read nothing take the share of their tenant, and no more. A request of an
// operator has the reserve. Reading or closing a log gives its memory back.
func TestUnreadLogsOfATenantLeaveRoomForOthers(t *testing.T) {
	long := strings.Repeat("x", logsBytesMax)
	a := &Agent{Config: Config{Host: pando.Host{Name: "h1"}, OpenLog: func(
		_ context.Context, _ pando.ServiceKey, i pando.InstanceID, q pando.LogQuery,
	) (pando.LogLines, error) {
		if q.Bytes < logBytesLeast || q.Bytes*64 > logsBytesMax {
			t.Fatalf("a log of 64 may have %d bytes", q.Bytes)
		}
		if len(long) == 0 {
			return logs.Slice([]pando.LogLine{{Instance: i, Text: "one"}}), nil
		}
		return logs.Slice([]pando.LogLine{{Instance: i, Text: long[:q.Bytes-64]}}), nil
	}}}
	w := &window{a, newSessions(), newLogRoom()}
	ids := make([]pando.InstanceID, 64)
	ask := func(ctx context.Context, tenant pando.Tenant) (pando.LogLines, error) {
		return w.Logs(ctx, pando.ServiceKey{Tenant: tenant, Name: "web"}, ids, pando.LogQuery{Lines: 100_000})
	}
	by := func(tenant pando.Tenant) context.Context {
		return pando.WithToken(t.Context(), pando.Token{TokenKey: pando.TokenKey{Tenant: tenant}})
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
