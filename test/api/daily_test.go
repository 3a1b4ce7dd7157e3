package api

import (
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/driver/sim"
)

func TestRollbacksThatMakeNoSenseAreRefused(t *testing.T) {
	h := open(t)
	h.serving()
	for _, w := range []wrong{
		{"GET", "/v1/services/none/revisions", "", nil, 404, "not_found", "service none"},
		{"POST", "/v1/services/none/rollback", `{}`, nil, 404, "not_found", "service none"},
		{"POST", "/v1/services/web/rollback", `{}`, nil, 409, "refused", "no revision with another"},
		{"POST", "/v1/services/web/rollback", `{"to": 7}`, nil, 404, "not_found", "`pando history web`"},
		{"POST", "/v1/services/web/rollback", `{"to": 1}`, nil, 409, "refused", "revision 1 already"},
		{"POST", "/v1/services/web/rollback", `{"to": -1}`, nil, 400, "invalid", "body.to"},
		{"POST", "/v1/services/web/rollback", `{"too": 1}`, nil, 400, "invalid", `did you mean "to"?`},
		{"POST", "/v1/services/web/rollback", `{"reason": "` + strings.Repeat("a", 401) + `"}`, nil, 400,
			"invalid", "body.reason"},
		{"POST", "/v1/services/web/rollback", `{}`, []string{"If-Match", `"1"`}, 409, "conflict",
			"look again"},
	} {
		w.check(t, h.http.URL)
	}
	if n := len(read[[]pando.Revision](h.ask("GET", "/v1/services/web/revisions", ""))); n != 1 {
		t.Errorf("%d revisions after the refusals, want 1", n)
	}
}

// A rollback is a deploy of an older spec: it has a number, an author and a reason of its own.
func TestARollbackIsANewRevisionOfAnOlderSpec(t *testing.T) {
	h := open(t)
	h.serving()
	other := strings.Replace(web, "./web", "./other", 1)
	h.ask("POST", "/v1/services", other)
	h.await("revision 2 to serve", func() bool {
		st := read[pando.ServiceStatus](h.ask("GET", "/v1/services/web", ""))
		return st.Current == 2 && st.Phase == pando.ServiceServing
	})
	back := func() pando.ServiceStatus {
		return read[pando.ServiceStatus](h.ask("POST", "/v1/services/web/rollback",
			`{"reason": "errors in checkout"}`, "Pando-Operator", "anna", "Idempotency-Key", "b1"))
	}
	if st := back(); st.Target != 3 || st.Spec.Command[0] != "./web" {
		t.Fatalf("the target is revision %d with %v", st.Target, st.Spec)
	}
	if st := back(); st.Latest != 3 {
		t.Errorf("a request that was sent again made revision %d", st.Latest)
	}
	all := read[[]pando.Revision](h.ask("GET", "/v1/services/web/revisions", ""))
	if len(all) != 3 || all[2].Repeats != 1 || all[2].By.Name != "anna" || all[0].Number != 1 {
		t.Errorf("the history is %+v", all)
	}
	why := h.ask("GET", "/v1/services/web/why", "").body
	if !strings.Contains(why, "revision 3, with the spec of revision 1: errors in checkout") {
		t.Errorf("the reason is not recorded: %s", why)
	}
	if a := h.ask("DELETE", "/v1/services/web", ""); a.status != http.StatusNoContent {
		t.Fatalf("remove: %d %s", a.status, a.body)
	}
	if a := h.ask("POST", "/v1/services/web/rollback", `{}`); a.status != http.StatusConflict &&
		a.status != http.StatusNotFound {
		t.Errorf("a rollback of a service that leaves: %d %s", a.status, a.body)
	}
}

func TestStatsShowEveryInstance(t *testing.T) {
	h := open(t)
	st := h.serving()
	for _, path := range []string{"/v1/stats", "/v1/stats?service=web"} {
		all := read[[]pando.InstanceUsage](h.ask("GET", path, ""))
		if len(all) != 1 || all[0].Instance != st.Instances[0].ID || all[0].Missing != "" ||
			all[0].PIDs == nil || *all[0].PIDs != 1 || all[0].Host != "h1" || all[0].Phase != pando.PhaseInRotation {
			t.Errorf("%s: %+v", path, all)
		}
	}
	for _, w := range []wrong{
		{"GET", "/v1/stats?service=none", "", nil, 404, "not_found", "service none"},
		{"GET", "/v1/stats?srvice=none", "", nil, 400, "invalid", `did you mean "service"?`},
	} {
		w.check(t, h.http.URL)
	}
}

func TestASessionNeedsAnUpgradeAndAnInstance(t *testing.T) {
	h := open(t)
	h.serving()
	up := []string{"Upgrade", "pando-session", "Connection", "Upgrade"}
	cat := `{"command": ["cat"]}`
	for _, w := range []wrong{
		{"POST", "/v1/services/web/exec", cat, nil, 400, "invalid", "Upgrade: pando-session"},
		{"POST", "/v1/services/none/exec", cat, up, 404, "not_found", "service none"},
		{"POST", "/v1/services/web/exec?instance=web-none", cat, up, 404, "not_found", "`pando ps`"},
		{"POST", "/v1/services/web/exec", `{}`, up, 400, "invalid", "command"},
		{"POST", "/v1/services/web/exec", `{"command": []}`, up, 400, "invalid", "no command"},
		{"POST", "/v1/services/web/exec", `{"comand": ["x"]}`, up, 400, "invalid",
			`did you mean "command"?`},
		{"GET", "/v1/services/web/exec", "", nil, 405, "method", "want POST"},
	} {
		w.check(t, h.http.URL)
	}
}

// A host has a bounded number of sessions, and each frees its place at its end.
func TestAHostHasABoundedNumberOfSessions(t *testing.T) {
	h := open(t)
	h.serving()
	socket := filepath.Join(t.TempDir(), "api.sock")
	at(t, socket, h.http.Config.Handler)
	c := api.NewClient(socket, sim.Clock{})
	web, cat := pando.DefaultService("web"), pando.SessionSpec{Command: []string{"cat"}}
	var open []io.Closer
	for range pando.SessionsMax {
		conn, err := c.Exec(t.Context(), web, "", cat)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2) // the simulated command sends back its input
		if _, err := conn.Write([]byte("hi")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hi" {
			t.Fatalf("%q, %v", b, err)
		}
		open = append(open, conn)
	}
	if _, err := c.Exec(t.Context(), web, "", cat); !errors.Is(err, pando.ErrRefused) ||
		!strings.Contains(err.Error(), "one more session on host") {
		t.Errorf("one more: %v", err)
	}
	open[0].Close()
	h.await("a free place", func() bool {
		conn, err := c.Exec(t.Context(), web, "", cat)
		if err == nil {
			open[0] = conn
		}
		return err == nil
	})
	for _, conn := range open {
		conn.Close()
	}
	h.await("the end of every session", func() bool {
		why := h.ask("GET", "/v1/services/web/why", "").body
		return strings.Contains(why, "cat: it was ended after") && !strings.Contains(why, "cat: it runs")
	})
}
