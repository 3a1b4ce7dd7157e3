package service

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// A caller with a token of a tenant sees no host. It sees what of its tenant runs without a record.
func TestATokenSeesWhatRunsAdrift(t *testing.T) {
	env, out := consoletest.Answering(t, map[string]any{"GET /v1/services": []pando.ServiceStatus{},
		"GET /v1/tenants": []access.TenantStatus{{Adrift: "acme/web/web-1"}}}, "GET /v1/hosts")
	o := console.Open(&cli.Output{Env: env})
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
