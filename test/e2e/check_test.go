package e2e

import (
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// A config that its check refuses starts no program. The deploy goes back, the old instance serves
// meanwhile, and `pando why` shows the last lines of the check. A file with a secret shows none.
func TestARefusedConfigStartsNoProgram(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	p.Must(p.Host(), "bash", "-c", "printf hush | "+p.Bin+" secret set word")
	spec := func(config string) string {
		return labtest.Echo("web", "secrets: [word]\nconfigs:\n  limits:\n    "+config+
			"\n    check: [sh, -c, \"grep max $0 || { echo no max in; cat $0; exit 4; }\", \"{}\"]")
	}
	web := p.Deploy(spec("content: max 5"))
	first := web.AwaitInstances(1).Instances[0].ID
	refused := func(config, evidence string) string {
		t.Helper()
		said, why := p.DeployFails(7, spec(config)), web.Why()
		for _, want := range []string{"the config limits is refused: its check sh -c grep",
			"exited with 4", "mend the file or its check, and deploy again", evidence} {
			if !strings.Contains(said, want) || !strings.Contains(why, want) {
				t.Errorf("want %q in the answer and in why:\n%s\n%s", want, said, why)
			}
		}
		return said + why
	}
	refused("content: min 6", "no max in")
	text := refused("content: '{{secret \"word\"}}'\n    template: true", "its output is left out")
	if strings.Contains(text, "hush") {
		t.Errorf("the reason has the secret:\n%s", text)
	}
	if got := web.Get(p.Host(), "/"); !strings.HasPrefix(got, string(first)) {
		t.Errorf("after two refused deploys %q answers, want %s", got, first)
	}
	if text := p.Pando("logs", "web"); strings.Count(text, "hello from web-") != 1 {
		t.Errorf("a program with a refused config ran:\n%s", text)
	}
}
