package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"pando.run/pando/access"
)

// onServers lists the changes that only a server's host may ask for. A host or a token that made
// them could reach what is not its own.
var onServers = []string{
	"DELETE /v1/hosts/{host}/grants", "PUT /v1/hosts/{host}/grants",
	"DELETE /v1/hosts/{host}/rights/{right}", "PUT /v1/hosts/{host}/rights/{right}",
	"DELETE /v1/tenants/{tenant}", "PATCH /v1/tenants/{tenant}",
	"DELETE /v1/tenants/{tenant}/tokens/{token}", "POST /v1/tenants/{tenant}/tokens/{token}",
	"POST /v1/services/{name}/move", "POST /v1/services/{name}/recover",
	"POST /v1/services/{name}/snapshots", "DELETE /v1/services/{name}/snapshots/{snapshot}",
	"POST /v1/services/{name}/snapshots/{snapshot}/restore",
}

// Each change of the API is for members with a right, or for servers' hosts on purpose. A change
// in neither list works on a server's host only, which may be an oversight.
func TestEachChangeIsForMembersOrForServersOnPurpose(t *testing.T) {
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]any
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	allowed := http.NewServeMux()
	nothing := http.NotFoundHandler()
	for _, may := range everyMember {
		allowed.Handle(may, nothing)
	}
	for _, requests := range byRight {
		for _, may := range requests {
			allowed.Handle(may, nothing)
		}
	}
	allowed.Handle("DELETE /v1/hosts/{host}", nothing)
	allowed.Handle("PUT /v1/hosts/{host}/drain", nothing)
	found := 0
	for path, methods := range document.Paths {
		for method := range methods {
			if method == "get" || method == "parameters" {
				continue
			}
			found++
			name := strings.ToUpper(method) + " " + path
			r := httptest.NewRequest(strings.ToUpper(method), strings.NewReplacer("{", "", "}", "").Replace(path),
				nil)
			_, pattern := allowed.Handler(r)
			if (pattern != "") == slices.Contains(onServers, name) {
				t.Errorf("%s: is it for members with a right (api/member.go), or for servers only?", name)
			}
		}
	}
	if found < 30 {
		t.Errorf("found %d changes", found)
	}
	if !slices.Contains(byTokenRight[access.TokenDeploy], "POST /v1/services/{name}/restart") {
		t.Error("a token that deploys restarts nothing")
	}
}
