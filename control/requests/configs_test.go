package requests

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

// An older agent would start a program without its configs, so the deploy is refused while the
// cluster has one.
func TestConfigsNeedANewBuildOnEachHost(t *testing.T) {
	for name, change := range map[string]func(*pando.Spec){
		"configs":     func(s *pando.Spec) { s.Configs = []pando.Config{{Name: "a", Text: "x"}} },
		"extra_hosts": func(s *pando.Spec) { s.ExtraHosts = map[string]string{"a": "192.0.2.9"} },
	} {
		t.Run(name, func(t *testing.T) {
			tb := decidetest.New(t)
			spec := pando.Spec{Name: "web", Command: []string{"x"}}.WithDefaults()
			if why := unable(tb.W, spec); why != "" {
				t.Fatalf("without the word: %s", why)
			}
			change(&spec)
			if why := unable(tb.W, spec); !strings.HasPrefix(why, "configs: host ") ||
				!strings.Contains(why, "older pando") {
				t.Errorf("an older host takes it: %q", why)
			}
			for key, h := range tb.W.Hosts {
				h.V.Configs = true
				tb.W.Hosts[key] = h
			}
			if why := unable(tb.W, spec); why != "" {
				t.Errorf("a newer host refuses it: %s", why)
			}
		})
	}
}
