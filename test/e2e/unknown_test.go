package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// unknownNames are, for each command of the reference that takes a name, calls with a name that does
// not exist. A command without a call makes the object of the name, or reads a file. A tenant needs no
// record, so no name of one is unknown to its tokens.
var unknownNames = map[string][]string{
	"audit": nil, "backup": nil, "convert": nil, "deploy": nil, "image build": nil, "spec check": nil,
	"secret set": nil, "tenant set": nil, "restore": {"restore nosuch --from 3f9a02c1be77"},
	"cp":               {"cp nosuch:/etc/hosts .", "cp web/web-nosuch:/etc/hosts ."},
	"diff":             {"diff nosuch", "diff web 77"},
	"exec":             {"exec nosuch -- true", "exec web/web-nosuch -- true"},
	"history":          {"history nosuch"},
	"image pull":       {"image pull docker-archive:/nosuch.tar", "image pull oci:/nosuch"},
	"image rm":         {"image rm nosuch"},
	"image show":       {"image show nosuch"},
	"logs":             {"logs nosuch", "logs web --instance web-nosuch"},
	"migrate":          {"migrate nosuch"},
	"port-forward":     {"port-forward nosuch 8080", "port-forward web/web-nosuch 8080"},
	"ps":               {"ps nosuch"},
	"recover":          {"recover nosuch --force-from nosuch-0"},
	"restart":          {"restart nosuch", "restart web web-nosuch"},
	"rm":               {"rm nosuch"},
	"rollback":         {"rollback nosuch", "rollback web --to 77"},
	"rollout finish":   {"rollout finish nosuch --now"},
	"rollout pause":    {"rollout pause nosuch"},
	"rollout resume":   {"rollout resume nosuch"},
	"rollout status":   {"rollout status nosuch"},
	"rollout undo":     {"rollout undo nosuch"},
	"run":              {"run nosuch -- true"},
	"runs":             {"runs nosuch", "runs work --end 77"},
	"scale":            {"scale nosuch 2"},
	"secret rm":        {"secret rm nosuch"},
	"snapshot":         {"snapshot nosuch", "snapshot web/web-nosuch"},
	"snapshot ls":      {"snapshot ls nosuch"},
	"snapshot rm":      {"snapshot rm nosuch 3f9a02c1be77", "snapshot rm web 3f9a02c1be77"},
	"spec show":        {"spec show nosuch"},
	"state log":        {"state log nosuch"},
	"stats":            {"stats nosuch"},
	"status":           {"status nosuch"},
	"tenant rm":        {"tenant rm nosuch"},
	"tenant show":      {"tenant show nosuch"},
	"tenant token add": nil,
	"tenant token ls":  nil,
	"tenant token rm":  {"tenant token rm nosuch ci", "tenant token rm acme nosuch"},
	"top":              {"top nosuch --once"},
	"volume inspect":   {"volume inspect nosuch", "volume inspect web nosuch"},
	"volume ls":        {"volume ls nosuch"},
	"volume rm":        {"volume rm nosuch data", "volume rm web nosuch"},
	"watch":            {"watch nosuch"},
	"why":              {"why nosuch"},
	"hosts allow":      {"hosts allow nosuch deploy"},
	"hosts deny":       {"hosts deny nosuch deploy"},
	"hosts drain":      {"hosts drain nosuch"},
	"hosts rm":         {"hosts rm nosuch"},
	"hosts undrain":    {"hosts undrain nosuch"},
	"rebalance":        {"rebalance nosuch"},
	"servers rm":       {"servers rm nosuch"},
	"daemons restart":  nil,
	"completion":       nil,
}

// A name that does not exist is exit code 4 and a next step, for every command of the cluster.
func TestAnUnknownNameIsNotFound(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	p.Deploy(labtest.Echo("web")).AwaitInstances(1)
	p.Deploy("name: work\nkind: job\ncommand: [\"true\"]\n")
	p.Pando("tenant", "set", "acme", "--instances", "1")
	for _, c := range namingCommands(t) {
		calls, listed := unknownNames[c]
		if !listed {
			t.Errorf("`pando %s` takes a name, and no call of it is listed here", c)
		}
		for _, call := range calls {
			out := p.Run(p.Host(), append([]string{p.Bin}, strings.Fields(call)...)...)
			if out.Code != 4 || !strings.Contains(out.Text, "not found") ||
				!strings.Contains(out.Text, "`pando ") && !strings.Contains(out.Text, "/nosuch") {
				t.Errorf("pando %s: exit code %d\n%s", call, out.Code, out.Text)
			}
		}
	}
}

// namingCommands returns the commands of the reference whose use has a name, but for those that need no
// cluster.
func namingCommands(t *testing.T) (out []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		use, is := strings.CutPrefix(strings.TrimSpace(line), "### `pando ")
		words := strings.Fields(strings.TrimSuffix(use, "`"))
		if !is || slices.Contains([]string{"fn", "mem", "lab"}, words[0]) {
			continue
		}
		verbs := slices.IndexFunc(words, func(w string) bool {
			first := strings.TrimLeft(w, "[")
			return len(first) > 1 && first[:2] == strings.ToUpper(first[:2])
		})
		if verbs > 0 {
			out = append(out, strings.Join(words[:verbs], " "))
		}
	}
	if len(out) < 40 {
		t.Fatalf("the reference has %d commands with a name", len(out))
	}
	return out
}
