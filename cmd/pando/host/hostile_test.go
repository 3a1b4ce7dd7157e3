package host

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
	"pando.run/pando/driver/kernel"
)

// pages are the pages that show an answer of the cluster.
var pages = map[string]func(dice *rand.Rand, w io.Writer){
	"hosts":    func(d *rand.Rand, w io.Writer) { hosts(w, consoletest.Random[[]pando.HostStatus](d), consoletest.Noon) },
	"findings": func(d *rand.Rand, w io.Writer) { findings(w, consoletest.Random[[]kernel.Finding](d)) },
}

// An instance, a member and a registry choose texts that operators read. No page lets such a text
// command the consoletest.Terminal, add a line of its own at the left, or end the command.
func TestNoAnswerCommandsTheTerminal(t *testing.T) {
	for name, page := range pages {
		for seed := range uint64(300) {
			var out bytes.Buffer
			page(rand.New(rand.NewPCG(seed, 11)), &out)
			consoletest.CheckHarmless(t, fmt.Sprint(name, ", seed ", seed), out.String())
			if t.Failed() {
				break
			}
		}
	}
}
