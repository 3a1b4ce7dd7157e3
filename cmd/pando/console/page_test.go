package console

import (
	"bytes"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func TestATerminalShowsEachChangeOfAWait(t *testing.T) {
	env, shown := consoletest.Terminal(t, 80, nil)
	o := Open(&cli.Output{Env: env})
	all := []pando.ServiceStatus{{Instances: []pando.InstanceStatus{{
		Instance: pando.Instance{ID: "website-7k3fq", Revision: 1, Phase: pando.PhaseFailed}}}}}
	p := o.Progress(all...)
	p.print(all[0])
	all[0].Instances[0].Phase, all[0].Instances[0].Reason = pando.PhaseReady, "after\x1b[1m 3ms"
	p.print(all[0])
	p.print(all[0])
	if text := shown(); strings.Count(text, "\n") != 1 ||
		!strings.Contains(text, "website-7k3fq  revision 1  ready: after\uFFFD[1m 3ms") {
		t.Errorf("got\n%q", text)
	}
	o.Out.Stdout = &bytes.Buffer{}
	if o.Progress(all...) != nil {
		t.Error("a pipe gets progress")
	}
}
