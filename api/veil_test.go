package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

// telling answers every read with a spec that has a password.
type telling struct{ access.Operators }

var told = pando.Spec{Name: "web", Environment: map[string]string{"PASSWORD": "hunter2"}}

func (telling) Service(context.Context, pando.ServiceKey) (pando.ServiceStatus, error) {
	return pando.ServiceStatus{Spec: &told}, nil
}

func (telling) Pin(
	context.Context, pando.ServiceKey, int, time.Duration, pando.Asker,
) (pando.ServiceStatus, error) {
	return pando.ServiceStatus{Spec: &told}, nil
}

func (telling) Unpin(
	context.Context, pando.ServiceKey, pando.Asker,
) (pando.ServiceStatus, error) {
	return pando.ServiceStatus{Spec: &told}, nil
}

func (telling) Revisions(context.Context, pando.ServiceKey) ([]pando.Revision, error) {
	return []pando.Revision{{Number: 1, Spec: told}}, nil
}

func (telling) Watch(context.Context, pando.StoreRevision) <-chan pando.Change {
	out := make(chan pando.Change, 1)
	out <- pando.Change{Kind: pando.KindRevision, Key: "/pando/revision/default/web/1",
		Value: pando.Revision{Number: 1, Spec: told}}
	close(out)
	return out
}

func (telling) State() http.Handler { return http.NotFoundHandler() }

// A captured host learns the names of variables and none of their values. An operator on a server's
// host sees them, and one of a host that may deploy.
func TestMembersSeeNoEnvironment(t *testing.T) {
	all := OperatorsHandler(telling{}, func(context.Context) error { return nil })
	members := ForMembers(all, isHost("h2", pando.RightExec, pando.RightAdmit))
	deployers := ForMembers(all, isHost("h2", pando.RightDeploy))
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/services/web", ""},
		{"GET", "/v1/services/web/revisions", ""},
		{"GET", "/v1/watch", ""},
		{"POST", "/v1/services/web/pin", `{"instances":2}`},
		{"DELETE", "/v1/services/web/pin", ""},
	} {
		for caller, h := range map[string]http.Handler{"operator": all, "member": members,
			"deployer": deployers} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
			got := w.Body.String()
			if w.Code != http.StatusOK || !strings.Contains(got, "PASSWORD") {
				t.Fatalf("%s %s as %s: %d %s", c.method, c.path, caller, w.Code, got)
			}
			if shown := strings.Contains(got, "hunter2"); shown != (caller != "member") {
				t.Errorf("%s %s shows the value to the %s: %v", c.method, c.path, caller, shown)
			}
		}
	}
	if told.Environment["PASSWORD"] != "hunter2" {
		t.Error("the veil changed the record itself")
	}
}

func (telling) Snapshots(context.Context, pando.ServiceKey) ([]pando.SnapshotStatus, error) {
	return []pando.SnapshotStatus{{Digest: toldDigest}}, nil
}

var toldDigest = "sha256:" + strings.Repeat("0123456789abcdef", 4)

// The digest of a snapshot names the memory of a program. A captured host sees its beginning, which
// names it in a request.
func TestMembersSeeTheBeginningOfADigest(t *testing.T) {
	all := OperatorsHandler(telling{}, func(context.Context) error { return nil })
	members := ForMembers(all, isHost("h2", pando.RightExec, pando.RightAdmit))
	for caller, h := range map[string]http.Handler{"operator": all, "member": members} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/snapshots", nil))
		got := w.Body.String()
		if w.Code != http.StatusOK || !strings.Contains(got, "0123456789ab") {
			t.Fatalf("as %s: %d %s", caller, w.Code, got)
		}
		if shown := strings.Contains(got, toldDigest[7:]); shown != (caller == "operator") {
			t.Errorf("it shows the digest to the %s: %v", caller, shown)
		}
	}
}

// removing counts the services that are removed, by whether their states go too.
type removing struct {
	access.Operators
	purged *[]bool
}

func (r removing) Remove(_ context.Context, _ pando.ServiceKey, purge bool, _ pando.Asker) error {
	*r.purged = append(*r.purged, purge)
	return nil
}

// The right counts where the state is removed, in whatever words the request says it.
func TestAMemberWithoutARightRemovesNoState(t *testing.T) {
	var purged []bool
	all := OperatorsHandler(removing{telling{}, &purged}, func(context.Context) error { return nil })
	members := ForMembers(all, isHost("h2", pando.RightExec, pando.RightAdmit))
	deployers := ForMembers(all, isHost("h2", pando.RightDeploy))
	for _, words := range []string{"purge=true", "purge=1", "purge=T", "tenant=bank&purge=TRUE"} {
		for caller, h := range map[string]http.Handler{"operator": all, "member": members,
			"deployer": deployers} {
			purged = nil
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("DELETE", "/v1/services/web?"+words, http.NoBody))
			removed := len(purged) == 1 && purged[0]
			if may := caller != "member"; removed != may || (w.Code == http.StatusForbidden) == may {
				t.Errorf("%s as %s: %d %s", words, caller, w.Code, w.Body)
			}
			if caller == "member" && !strings.Contains(w.Body.String(), "pando hosts allow h2 deploy") {
				t.Errorf("the refusal names no next command: %s", w.Body)
			}
		}
	}
	purged = nil
	w := httptest.NewRecorder()
	members.ServeHTTP(w, httptest.NewRequest("DELETE", "/v1/services/web", http.NoBody))
	if len(purged) != 1 || purged[0] {
		t.Errorf("a member removes a service and keeps its state: %v, %d %s", purged, w.Code, w.Body)
	}
}

// withImages is a server with images.
type withImages struct {
	telling
	pando.ImageOperators
}

func TestTheVeilLeavesTheImagesVisible(t *testing.T) {
	for name, c := range map[string]struct {
		ops  access.Operators
		want bool
	}{"with images": {veiled{withImages{}}, true}, "without": {veiled{telling{}}, false},
		"without a veil": {withImages{}, true}} {
		if _, err := (operators{operators: c.ops}).keeper(); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
