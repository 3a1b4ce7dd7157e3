package operator

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// answering returns a console on a socket that gives the same answers always.
func answering(
	t *testing.T, answers map[string]any, forbidden ...string,
) (*Console, *strings.Builder) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for path, v := range answers {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	for _, path := range forbidden {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(map[string]string{"code": "forbidden", "detail": "no"})
		})
	}
	go http.Serve(l, mux) // until the socket is closed
	t.Cleanup(func() { l.Close() })
	out := &strings.Builder{}
	getenv := func(name string) string { return map[string]string{"PANDO_API": socket}[name] }
	return Open(&cli.Output{Env: cli.Env{Stdout: out, Stderr: out, Getenv: getenv}}), out
}

// A log that cannot be written is a matter of the output, not of the server.
func TestALogOnAFullDiskNamesTheDisk(t *testing.T) {
	o, _ := answering(t, map[string]any{"GET /v1/services/web/logs": "line"})
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	o.out.Stdout = full
	err = o.copyLogs(t.Context(), pando.DefaultService("web"), logged{}, pando.LogQuery{Lines: 1})
	if cli.CodeOf(err) != 1 || !strings.Contains(err.Error(), "the output is incomplete: ") ||
		!strings.Contains(err.Error(), "no space left") {
		t.Errorf("code %d: %v", cli.CodeOf(err), err)
	}
}

// A name without a service leads to the likely one: of the same tenant with a slip, or of another
// tenant with the same name.
func TestAMissingServiceHasASuggestion(t *testing.T) {
	status := func(tenant pando.Tenant, name pando.ServiceName) (st pando.ServiceStatus) {
		st.ServiceKey = pando.ServiceKey{Tenant: tenant, Name: name}
		return st
	}
	o, _ := answering(t, map[string]any{"GET /v1/services": []pando.ServiceStatus{
		status(pando.DefaultTenant, "website"), status("shop", "cart"),
	}})
	for name, want := range map[string]string{
		"webiste":   "service webiste: not found; did you mean website?",
		"cart":      "a service of another tenant has that name: shop/cart",
		"zebra":     "`pando status` lists the services",
		"shop/cat":  "did you mean shop/cart?",
		"shop/cart": "not found", // the error was about a part of it
	} {
		key, err := pando.ParseServiceKey(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.meant(t.Context(), key, pando.ErrNotFound); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := o.meant(t.Context(), pando.DefaultService("x"), pando.ErrRefused); err == nil {
		t.Error("another error is lost")
	}
}

// A caller with a token of a tenant sees no host. It sees what of its tenant runs without a record.
func TestATokenSeesWhatRunsAdrift(t *testing.T) {
	o, out := answering(t, map[string]any{"GET /v1/services": []pando.ServiceStatus{},
		"GET /v1/tenants": []pando.TenantStatus{{Adrift: "acme/web/web-1"}}}, "GET /v1/hosts")
	for _, c := range []*cobra.Command{Ps(o), Status(o)} {
		out.Reset()
		c.SetArgs(nil)
		c.SetContext(t.Context())
		if err := c.Execute(); err != nil {
			t.Fatal(err)
		}
		if said := out.String(); !strings.Contains(said, "acme/web/web-1 run without a record") ||
			!strings.Contains(said, "`pando rm`") {
			t.Errorf("%s prints %q", c.Name(), said)
		}
	}
}
