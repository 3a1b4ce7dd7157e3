package e2e

import (
	"os"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

const asking = `name: asking
command: [sh, -c, "(exec 3<>/dev/fuse) && echo opens fuse; ls /dev; sleep 1000"]
health: {ready: started}
grants: [device: fuse]
`

// A service with a grant waits, with the command that gives it, and starts once the owner of the
// host gives it.
func TestAServiceStartsOnceItsGrantIsGiven(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	t.Parallel()
	p := labtest.Up(t)
	p.Pando("deploy", p.Write("asking.yaml", asking))
	p.Await("it waits with the reason of the host", func() (string, bool) {
		text := p.Pando("why", "asking", "--pending")
		return text, containsAll(text, "does not give device=fuse",
			"pando hosts allow "+p.Host()+" device=fuse")
	})
	has(p, p.Pando("audit", "--grants"), "no host gives anything")
	p.PandoFails(3, "hosts", "allow", p.Host(), "device=../mem")
	has(p, p.Pando("hosts", "allow", p.Host(), "device=fuse"), "it gives device=fuse now")
	p.Await("the program opens the device", func() (string, bool) {
		text := p.Pando("logs", "asking")
		return text, containsAll(text, "opens fuse")
	})
	has(p, p.Pando("audit", "--grants"), p.Host(), "device=fuse", "yes")
	has(p, p.Pando("audit"), "give", "device=fuse")
	p.Pando("hosts", "deny", p.Host(), "device=fuse")
	has(p, p.Pando("audit", "--grants"), "no")
	p.Pando("rm", "asking")
}

func containsAll(text string, wants ...string) bool {
	for _, want := range wants {
		if !strings.Contains(text, want) {
			return false
		}
	}
	return true
}
