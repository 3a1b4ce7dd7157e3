package image

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// pages are the pages that show an answer of the cluster.
var pages = map[string]func(dice *rand.Rand, w io.Writer){
	"images": func(d *rand.Rand, w io.Writer) { images(w, consoletest.Random[[]pando.ImageStatus](d)) },
	"image":  func(d *rand.Rand, w io.Writer) { imageOf(w, consoletest.Random[pando.ImageStatus](d)) },
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
