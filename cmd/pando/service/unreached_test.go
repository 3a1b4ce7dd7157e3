package service

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/console/consoletest"
	"pando.run/pando/cmd/pando/host"
)

// Hosts, ps and status read real answers of a socket. Each names the hosts out of reach.
func TestHostsOutOfReachAreNamed(t *testing.T) {
	answers := map[string]any{
		"GET /v1/services": []pando.ServiceStatus{},
		"GET /v1/hosts": []pando.HostStatus{{
			Host: pando.Host{Name: "one"}, Losses: &pando.Losses{Unreached: "1 host is out of reach"},
		}},
	}
	for name, command := range map[string]func(*console.Console) *cobra.Command{
		"hosts": host.Hosts, "ps": Ps, "status": Status,
	} {
		env, out := consoletest.Answering(t, answers)
		o := console.Open(&cli.Output{Env: env})
		c := command(o)
		c.SetArgs([]string{})
		if err := c.ExecuteContext(t.Context()); err != nil {
			t.Errorf("pando %s: %v", name, err)
		}
		const want = "one steers around hosts: 1 host is out of reach\n"
		if !strings.Contains(out.String(), want) {
			t.Errorf("pando %s: no line %q in:\n%s", name, want, out.String())
		}
	}
}
