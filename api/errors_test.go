package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

// failing implements both interfaces; every method that a route of the tables calls returns its
// error.
type failing struct {
	access.Operators
	pando.Self
	err error
}

func (f failing) status() (pando.ServiceStatus, error) { return pando.ServiceStatus{}, f.err }

func (f failing) Deploy(
	context.Context, pando.Spec, pando.Asker,
) (pando.ServiceStatus, error) {
	return f.status()
}

func (f failing) Rollback(
	context.Context, pando.ServiceKey, int, string, pando.Asker,
) (pando.ServiceStatus, error) {
	return f.status()
}

func (f failing) Revisions(context.Context, pando.ServiceKey) ([]pando.Revision, error) {
	return nil, f.err
}

func (f failing) Rollout(context.Context, pando.ServiceKey) (pando.RolloutStatus, error) {
	return pando.RolloutStatus{}, f.err
}

func (f failing) PauseRollout(
	context.Context, pando.ServiceKey, string, pando.Asker,
) (pando.RolloutStatus, error) {
	return pando.RolloutStatus{}, f.err
}

func (f failing) EndDrains(context.Context, pando.ServiceKey, pando.Asker) error { return f.err }

func (f failing) Restart(
	context.Context, pando.ServiceKey, pando.RestartAsk, pando.Asker,
) (pando.ServiceStatus, error) {
	return pando.ServiceStatus{}, f.err
}

func (f failing) ResumeRollout(
	context.Context, pando.ServiceKey, pando.Asker,
) (pando.RolloutStatus, error) {
	return pando.RolloutStatus{}, f.err
}

func (f failing) UndoRollout(
	context.Context, pando.ServiceKey, string, pando.Asker,
) (pando.ServiceStatus, error) {
	return f.status()
}

func (f failing) Recover(
	context.Context, pando.ServiceKey, pando.Recovery, pando.Asker,
) (pando.ServiceStatus, error) {
	return f.status()
}

func (f failing) Remove(context.Context, pando.ServiceKey, bool, pando.Asker) error { return f.err }

func (f failing) Pin(
	context.Context, pando.ServiceKey, int, time.Duration, pando.Asker,
) (pando.ServiceStatus, error) {
	return f.status()
}

func (f failing) Unpin(
	context.Context, pando.ServiceKey, pando.Asker,
) (pando.ServiceStatus, error) {
	return f.status()
}

func (f failing) Services(context.Context) ([]pando.ServiceStatus, error) { return nil, f.err }

func (f failing) Service(context.Context, pando.ServiceKey) (pando.ServiceStatus, error) {
	return f.status()
}

func (f failing) Why(context.Context, pando.ServiceKey, int) ([]pando.Because, error) {
	return nil, f.err
}

func (f failing) Fits(context.Context, pando.ServiceKey) ([]pando.HostFit, error) {
	return nil, f.err
}

func (f failing) Hosts(context.Context) ([]pando.HostStatus, error) { return nil, f.err }

func (f failing) HostWork() pando.HostOperators { return f }

func (f failing) DrainHost(
	context.Context, pando.HostName, time.Duration, pando.Asker,
) (pando.HostDrainStatus, error) {
	return pando.HostDrainStatus{}, f.err
}

func (f failing) UndrainHost(
	context.Context, pando.HostName, pando.Asker,
) (pando.HostDrainStatus, error) {
	return pando.HostDrainStatus{}, f.err
}

func (f failing) HostDrain(context.Context, pando.HostName) (pando.HostDrainStatus, error) {
	return pando.HostDrainStatus{}, f.err
}

func (f failing) Rebalance(
	context.Context, pando.RebalanceAsk, pando.Asker,
) (pando.Rebalance, error) {
	return pando.Rebalance{}, f.err
}

func (f failing) RemoveHost(context.Context, pando.HostName, bool, pando.Asker) error {
	return f.err
}

func (f failing) Watch(context.Context, pando.StoreRevision) <-chan pando.Change {
	out := make(chan pando.Change)
	close(out)
	return out
}

func (f failing) Logs(
	context.Context, pando.ServiceKey, pando.InstanceID, pando.LogQuery,
) (pando.LogLines, error) {
	return nil, f.err
}

func (f failing) Stats(context.Context, pando.ServiceKey) ([]pando.InstanceUsage, error) {
	return nil, f.err
}

func (f failing) Steering(
	context.Context, []pando.ServiceKey, time.Duration,
) ([]pando.HostSteering, error) {
	return nil, f.err
}

func (f failing) Counters(context.Context, pando.ServiceKey) ([]pando.EndpointCounters, error) {
	return nil, f.err
}

func (f failing) StateLog(context.Context, pando.ServiceKey, int) ([]pando.StateCommit, error) {
	return nil, f.err
}

func (f failing) State() http.Handler { return http.NotFoundHandler() }

func (f failing) Describe(context.Context, pando.InstanceID) (pando.SelfView, error) {
	return pando.SelfView{}, f.err
}

func (f failing) Ready(context.Context, pando.InstanceID) error { return f.err }

// pending is the intent that a refusal names.
var pending = pando.Intent{ID: "i1", Verb: pando.VerbReplicate}

func (f failing) Replicate(context.Context, pando.InstanceID, pando.Ask) (pando.Intent, error) {
	return pending, f.err
}

func (f failing) Halt(context.Context, pando.InstanceID, pando.Ask) (pando.HaltResult, error) {
	return pando.HaltResult{}, f.err
}

func (f failing) Die(context.Context, pando.InstanceID, pando.Ask) (pando.Intent, error) {
	return pending, f.err
}

func (f failing) PutMetrics(context.Context, pando.InstanceID, map[string]float64) error {
	return f.err
}

func (f failing) Lead(context.Context, pando.InstanceID, int64) error { return f.err }

func (f failing) Events(
	context.Context, pando.InstanceID, uint64,
) (<-chan pando.SelfEvent, error) {
	return nil, f.err
}

func (f failing) StateGet(context.Context, pando.InstanceID, string) (pando.StateValue, error) {
	return pando.StateValue{}, f.err
}

func (f failing) StateList(
	context.Context, pando.InstanceID, string,
) ([]pando.StateEntry, error) {
	return nil, f.err
}

func (f failing) StatePut(context.Context, pando.InstanceID, string, []byte) error { return f.err }

func (f failing) StatePatch(context.Context, pando.InstanceID, string, []byte) error {
	return f.err
}

func (f failing) StateDelete(context.Context, pando.InstanceID, string) error { return f.err }

func (f failing) StateCommit(
	context.Context, pando.InstanceID, pando.StateChange,
) (pando.ObjectID, error) {
	return pando.ObjectID{}, f.err
}

func (f failing) StatePull(context.Context, pando.InstanceID) (pando.MergeResult, error) {
	return pando.MergeResult{}, f.err
}

func (f failing) StatePush(context.Context, pando.InstanceID) (pando.MergeResult, error) {
	return pando.MergeResult{}, f.err
}

// request is a valid request of a contract.
type request struct{ method, path, body string }

const someSpec = `{"name": "web", "command": ["./web"]}`

// ofOperators has each route of the operators' contract that calls Operators and sends one answer.
var ofOperators = []request{
	{"GET", "/v1/services", ""},
	{"POST", "/v1/services", someSpec},
	{"GET", "/v1/services/web", ""},
	{"DELETE", "/v1/services/web", ""},
	{"POST", "/v1/services/web/pin", `{"instances": 2}`},
	{"DELETE", "/v1/services/web/pin", ""},
	{"GET", "/v1/services/web/why", ""},
	{"GET", "/v1/services/web/fits", ""},
	{"GET", "/v1/services/web/logs", ""},
	{"GET", "/v1/services/web/counters", ""},
	{"GET", "/v1/services/web/state", ""},
	{"GET", "/v1/services/web/revisions", ""},
	{"POST", "/v1/services/web/rollback", `{"to": 1}`},
	{"GET", "/v1/services/web/rollout", ""},
	{"POST", "/v1/services/web/rollout/pause", `{"reason": "lunch"}`},
	{"DELETE", "/v1/services/web/rollout/pause", ""},
	{"POST", "/v1/services/web/rollout/undo", `{}`},
	{"POST", "/v1/services/web/recover", `{"move": "web-1"}`},
	{"GET", "/v1/stats", ""},
	{"GET", "/v1/steering?service=web", ""},
	{"GET", "/v1/hosts", ""},
	{"DELETE", "/v1/hosts/h2", ""},
	{"GET", "/readyz", ""},
}

// ofInstances has each route of the instances' contract.
var ofInstances = []request{
	{"GET", "/v1/self", ""},
	{"POST", "/v1/self/ready", ""},
	{"POST", "/v1/self/replicate", `{"reason": "load"}`},
	{"POST", "/v1/self/halt", ""},
	{"POST", "/v1/self/die", ""},
	{"PUT", "/v1/self/metrics", `{"queue": 12}`},
	{"GET", "/v1/self/events", ""},
	{"POST", "/v1/self/state/commit", `{"message": "m"}`},
	{"POST", "/v1/self/state/pull", ""},
	{"POST", "/v1/self/state/push", ""},
	{"GET", "/v1/self/state/a", ""},
	{"GET", "/v1/self/state/a/", ""},
	{"PUT", "/v1/self/state/a", "x"},
	{"PATCH", "/v1/self/state/a", "x"},
	{"DELETE", "/v1/self/state/a", ""},
}

// contracts returns both contracts over an implementation that fails, with their routes.
func contracts(err error) map[string]struct {
	handler  http.Handler
	requests []request
} {
	f := failing{err: err}
	return map[string]struct {
		handler  http.Handler
		requests []request
	}{
		"operators": {OperatorsHandler(f, func(context.Context) error { return err }), ofOperators},
		"instances": {SelfHandler(f, "web-1"), ofInstances},
	}
}

// ask sends a request straight to a handler.
func (r request) ask(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	q := httptest.NewRequest(r.method, r.path, strings.NewReader(r.body))
	q.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, q)
	return w
}

// Each route turns each sentinel, also a wrapped one, into its status and its code. The detail is
// the whole text of the error, and a client gets the sentinel back.
func TestEveryRouteReportsEveryError(t *testing.T) {
	for _, p := range problems {
		err := fmt.Errorf("do it: %w: the cause; try `pando why`", p.Err)
		for name, c := range contracts(err) {
			for _, r := range c.requests {
				w := r.ask(c.handler)
				var got Problem
				if jerr := json.Unmarshal(w.Body.Bytes(), &got); jerr != nil {
					t.Errorf("%s: %s %s: %d %s", name, r.method, r.path, w.Code, w.Body)
					continue
				}
				if w.Code != p.Status || got.Status != p.Status || got.Code != p.Code ||
					got.Detail != err.Error() || got.Title != http.StatusText(p.Status) {
					t.Errorf("%s: %s %s with %v:\n got %d %+v\nwant %d %s", name, r.method, r.path,
						p.Err, w.Code, got, p.Status, p.Code)
				}
				if kind := w.Header().Get("Content-Type"); kind != "application/problem+json" {
					t.Errorf("%s: %s %s: content type %s", name, r.method, r.path, kind)
				}
				if !errors.Is(got.err(), p.Err) || got.err().Error() != err.Error() {
					t.Errorf("%s: %s %s: a client gets %v", name, r.method, r.path, got.err())
				}
			}
		}
	}
}

func TestAnUnknownErrorIsInternal(t *testing.T) {
	err := errors.New("the disk burns")
	for name, c := range contracts(err) {
		for _, r := range c.requests {
			w := r.ask(c.handler)
			var got Problem
			if jerr := json.Unmarshal(w.Body.Bytes(), &got); jerr != nil ||
				w.Code != http.StatusInternalServerError || got.Code != "internal" {
				t.Errorf("%s: %s %s: %d %s", name, r.method, r.path, w.Code, w.Body)
			}
		}
	}
	if back := (Problem{Code: "of a newer server", Detail: "text"}).err(); back.Error() != "text" {
		t.Errorf("a code that this build lacks: %v", back)
	}
}

// A caller may try again only if the store, a host or a registry gave no answer.
func TestOnlyAnAbsentStoreAsksForAnotherTry(t *testing.T) {
	for _, p := range problems {
		for name, c := range contracts(p.Err) {
			for _, r := range c.requests {
				got := r.ask(c.handler).Header().Get("Retry-After")
				silent := p.Status == http.StatusServiceUnavailable || p.Status == http.StatusBadGateway
				if (got == "1") != silent {
					t.Errorf("%s: %s %s with %v: Retry-After %q", name, r.method, r.path, p.Err, got)
				}
			}
		}
	}
}

// A refused ask for a copy names the intent that is in its way.
func TestARefusalHasItsIntent(t *testing.T) {
	w := request{"POST", "/v1/self/replicate",
		""}.ask(SelfHandler(failing{err: pando.ErrConflict}, "web-1"))
	var got Problem
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Intent == nil || got.Intent.ID != pending.ID {
		t.Errorf("got %s", w.Body)
	}
}

// The codes are a contract with programs: each is used once, and each status is an error.
func TestCodesAreUnique(t *testing.T) {
	codes := map[string]bool{}
	for _, p := range problems {
		if codes[p.Code] || p.Code != strings.ToLower(p.Code) || p.Status < 400 {
			t.Errorf("code %q of %v has status %d", p.Code, p.Err, p.Status)
		}
		codes[p.Code] = true
	}
}

// Every route refuses the methods that it does not have, and names those that it has.
func TestOtherMethodsAreRefusedByName(t *testing.T) {
	for name, c := range contracts(nil) {
		has := map[string][]string{}
		for _, r := range c.requests {
			has[r.path] = append(has[r.path], r.method)
		}
		for path, methods := range has {
			if strings.Contains(path, "/state/") && name == "instances" {
				continue // a path of the state takes all of them
			}
			w := request{"TRACE", path, ""}.ask(c.handler)
			var got Problem
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil ||
				w.Code != http.StatusMethodNotAllowed || got.Code != "method" {
				t.Errorf("%s: TRACE %s: %d %s", name, path, w.Code, w.Body)
			}
			for _, m := range methods {
				if !strings.Contains(got.Detail, m) {
					t.Errorf("%s: TRACE %s: %q does not name %s", name, path, got.Detail, m)
				}
			}
		}
	}
}

// No body breaks a handler: each answer is JSON with a code, or the request was right.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{"", "{", "{}", "[]", "null", someSpec, `{"instances": -1}`,
		`{"instances": 1e99}`, `{"reason": "x", "inputs": {"a": 1}}`, "\x00", `"text"`, `{} {}`,
		`{"put": {"a": "b"}, "delete": ["a"]}`, `{"for_seconds": 1e300, "instances": 1}`} {
		f.Add(seed)
	}
	all := contracts(pando.ErrRefused)
	f.Fuzz(func(t *testing.T, body string) {
		for name, c := range all {
			for _, r := range c.requests {
				if r.body == "" {
					continue
				}
				r.body = body
				w := r.ask(c.handler)
				var got Problem
				if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Code == "" ||
					got.Code == "internal" || w.Code >= 500 {
					t.Errorf("%s: %s %s %q: %d %s", name, r.method, r.path, body, w.Code, w.Body)
				}
			}
		}
	})
}

// A query with a name that cannot be one is wrong itself: no host is asked, and none is called
// silent.
func TestAWrongNameInAQueryIsRefused(t *testing.T) {
	h := contracts(pando.ErrUnreachable)["operators"].handler
	for _, path := range []string{"/v1/volumes", "/v1/snapshots", "/v1/stats", "/v1/steering",
		"/v1/watch"} {
		for _, query := range []string{"service=%01", "service=Web", "service=-x", "service=a/b",
			"service=web&tenant=%01"} {
			if path == "/v1/steering" && strings.Contains(query, "tenant") {
				continue
			}
			w := request{"GET", path + "?" + query, ""}.ask(h)
			if w.Code/100 != 4 || !strings.Contains(w.Body.String(), `"invalid"`) {
				t.Errorf("%s?%s: %d %s", path, query, w.Code, w.Body)
			}
		}
	}
}
