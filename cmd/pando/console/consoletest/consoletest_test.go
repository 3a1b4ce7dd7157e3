package consoletest

import (
	"math/rand/v2"
	"testing"

	"pando.run/pando"
)

// A random value has hostile texts at each depth, so that no page is tested with harmless ones.
func TestRandomValuesHaveHostileTexts(t *testing.T) {
	hostile := 0
	for seed := range uint64(50) {
		st := Random[pando.ServiceStatus](rand.New(rand.NewPCG(seed, 1)))
		if st.Reason == Evil[2] || len(st.Instances) > 0 && st.Instances[0].Reason == Evil[2] {
			hostile++
		}
	}
	if hostile == 0 {
		t.Error("no value has the text that clears a terminal")
	}
}
