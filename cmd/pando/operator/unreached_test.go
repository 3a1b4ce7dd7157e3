package operator

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
)

// Hosts, ps and status read real answers of a socket. Each names the hosts out of reach.
func TestHostsOutOfReachAreNamed(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	answers := http.NewServeMux()
	for path, v := range map[string]any{
		"GET /v1/services": []pando.ServiceStatus{},
		"GET /v1/hosts": []pando.HostStatus{{
			Host: pando.Host{Name: "one"}, Losses: &pando.Losses{Unreached: "1 host is out of reach"},
		}},
	} {
		answers.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	go http.Serve(l, answers) // until the socket is closed
	t.Cleanup(func() { l.Close() })
	for name, command := range map[string]func(*Console) *cobra.Command{
		"hosts": Hosts, "ps": Ps, "status": Status,
	} {
		var out strings.Builder
		c := command(Open(&cli.Output{Env: cli.Env{Stdout: &out, Stderr: &out,
			Getenv: func(name string) string { return map[string]string{"PANDO_API": socket}[name] }}}))
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
