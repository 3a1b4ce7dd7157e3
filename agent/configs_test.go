package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
)

const upstream = `{{range endpoints "api"}}{{.Name}} {{.IP}}:{{.Port}} {{.Host}}
{{else}}none
{{end}}`

// fed gives web a template over api, and starts an instance of it.
func (b *bench) fed(text string) {
	b.Helper()
	b.put(pando.Host{Name: "h2", Slot: 2})
	spec := pando.Spec{Name: "web", Command: []string{"web"}, Scale: pando.Scale{Min: 1, Max: 3},
		Configs: []pando.Config{{Name: "a.conf", Text: text, Template: true, Check: []string{"{}"}},
			{Name: "b.conf", Text: "{{plain}}"}}}
	b.put(pando.Revision{Service: web, Number: 1, Spec: spec.WithDefaults(),
		State: pando.RevisionCurrent})
}

// backend writes the record of a service with instances on h2 that take flows.
func (b *bench) backend(name pando.ServiceName, ids ...pando.InstanceID) {
	b.Helper()
	k := pando.DefaultService(name)
	spec := pando.Spec{Name: name, Command: []string{"x"},
		Ports: []pando.Port{{Published: 80, Target: 9000, Protocol: pando.TCP}}}
	all := []pando.Stored{
		pando.Service{ServiceKey: k, VIP4: pando.VIPs4.Addr().Next(), Current: 1, Target: 1, Latest: 1},
		pando.Revision{Service: k, Number: 1, Spec: spec.WithDefaults()},
	}
	for n, id := range ids {
		all = append(all, pando.Instance{ID: id, Service: k, Host: "h2", Revision: 1, Weight: 100,
			Phase: pando.PhaseInRotation, IP4: netip.AddrFrom4([4]byte{10, 128, 32, byte(n + 2)}),
			Born: time.Now(), Since: time.Now()})
	}
	b.put(all...)
}

// files returns the configs of the instance w1.
func (b *bench) files() map[string]string { return b.sandboxes.All()[0].Configs() }

// because returns the reasons of all decisions about configs.
func (b *bench) because() (out []string) {
	for _, d := range b.world().DecisionsOf(web) {
		if d.Kind == pando.DecidedConfig {
			out = append(out, d.Reason)
		}
	}
	return out
}

// A running instance gets a new file when a service of its template changes, at most every two
// seconds during a burst. A new agent finds the file as it is.
func TestAConfigFollowsItsServices(t *testing.T) {
	onBench(t, func(b *bench) {
		b.fed(upstream)
		b.serving("w1", 1)
		if got := b.files(); got["a.conf"] != "none\n" || got["b.conf"] != "{{plain}}" {
			t.Fatalf("at its start it has %q", got)
		}
		b.backend("api", "api-1")
		b.pass(time.Millisecond)
		if got := b.files()["a.conf"]; got != "api-1 10.128.32.2:9000 h2\n" {
			t.Fatalf("with an instance it has %q", got)
		}
		writes := len(b.because())
		for n := range 40 { // a storm of four seconds
			b.backend("api", "api-1", pando.InstanceID(fmt.Sprintf("api-%d", n+2)))
			b.pass(100 * time.Millisecond)
		}
		b.pass(3 * time.Second)
		if got := b.files()["a.conf"]; !strings.Contains(got, "api-41 10.128.32.3:9000 h2\n") {
			t.Errorf("after a storm it has %q", got)
		}
		if n := len(b.because()) - writes; n < 2 || n > 7 {
			t.Errorf("a storm of 40 changes was %d reloads: %q", n, b.because())
		}
		b.restart()
		before := len(b.because())
		b.backend("api", "api-99")
		b.pass(time.Second)
		if got := b.files()["a.conf"]; !strings.Contains(got, "api-99 10.128.32.2:9000 h2\n") {
			t.Errorf("after a restart of the agent it has %q", got)
		}
		if n := len(b.because()) - before; n != 1 {
			t.Errorf("a new agent made %d changes: %q", n, b.because())
		}
	})
}

// A thousand services change, and none of them is in the template: no runner wakes.
func TestOtherServicesConcernNoConfig(t *testing.T) {
	onBench(t, func(b *bench) {
		b.fed(upstream)
		b.backend("api", "api-1")
		b.serving("w1", 1)
		b.pass(time.Minute)
		before := b.agent.host.Tally.Steps.Load()
		var all []pando.Stored
		for n := range 1000 {
			k := pando.DefaultService(pando.ServiceName(fmt.Sprintf("other-%d", n)))
			all = append(all, pando.Service{ServiceKey: k, Current: 1, Target: 1, Latest: 1})
		}
		for part := range slices.Chunk(all, 200) {
			b.put(part...)
		}
		if n := b.agent.host.Tally.Steps.Load() - before; n > 100 { // of its probes
			t.Errorf("1,000 changes of other services were %d steps of the instance", n)
		}
		if got := b.because(); len(got) > 0 {
			t.Errorf("other services changed its config: %q", got)
		}
		b.agent.records.Lock()
		defer b.agent.records.Unlock()
		if n := len(b.agent.crews.ConfigsOf(b.agent.records.World, pando.DefaultService("api"))); n != 1 {
			t.Errorf("%d instances follow the service for their configs", n)
		}
	})
}

// A refused content changes nothing and shows on the line of the instance until a content passes.
// The agent tries again by itself.
func TestARefusedConfigKeepsTheFormerOne(t *testing.T) {
	onBench(t, func(b *bench) {
		b.fed(upstream)
		b.backend("api", "api-1")
		b.serving("w1", 1)
		was := b.files()["a.conf"]
		var good atomic.Bool
		b.sandboxes.Check = func(c pando.ConfigChange) error {
			if !good.Load() {
				return &pando.CheckFailed{Command: c.Check, Code: 4, Output: []byte("line 3: no\n")}
			}
			return nil
		}
		b.backend("api", "api-1", "api-2")
		b.pass(time.Second)
		i := b.world().Instances["w1"].V
		want := pando.ConfigKept + "a.conf: its check {} exited with 4"
		if b.files()["a.conf"] != was || i.Reason != want || i.Phase != pando.PhaseInRotation {
			t.Errorf("a refused config: %q, %q", b.files()["a.conf"], i.Reason)
		}
		for _, d := range b.world().DecisionsOf(web) {
			if d.Kind == pando.DecidedConfig && (len(d.Lines) != 1 || d.Lines[0] != "line 3: no") {
				t.Errorf("its evidence is %q", d.Lines)
			}
		}
		b.pass(time.Minute)
		if got := b.because(); len(got) != 1 {
			t.Errorf("one reason is recorded %d times: %q", len(got), got)
		}
		good.Store(true)
		b.pass(runner.ConfigRetry + time.Second)
		if got := b.files()["a.conf"]; got == was {
			t.Error("the agent did not try again")
		}
		if got := b.world().Instances["w1"].V.Reason; strings.HasPrefix(got, pando.ConfigKept) {
			t.Errorf("its reason stays: %q", got)
		}
	})
}

// A template that cannot be rendered fails the start with its line.
func TestATemplateWithoutItsServiceFailsTheStart(t *testing.T) {
	onBench(t, func(b *bench) {
		b.fed("\n" + `{{(service "api").VIP}}`)
		b.place("w1", 1)
		synctest.Wait()
		b.pass(time.Second)
		found := false
		for _, d := range b.world().DecisionsOf(web) {
			found = found || strings.Contains(d.Reason, "the template of a.conf: line 2:")
		}
		if !found {
			t.Errorf("the decisions are %+v", b.world().DecisionsOf(web))
		}
	})
}

// The instances of a service come within reach of its tenant while a template here lists them.
func TestAListedServiceComesWithinReach(t *testing.T) {
	onBench(t, func(b *bench) {
		names := func(s pando.ServiceName) int {
			out, _ := tables{b.agent}.Table(pando.DefaultService(s))
			return len(out.Names)
		}
		b.backend("api", "api-1", "api-2")
		b.backend("other", "other-1")
		if n := names("api"); n != 0 {
			t.Errorf("without a template %d instances are within reach", n)
		}
		b.fed(upstream)
		b.serving("w1", 1)
		if a, o := names("api"), names("other"); a != 2 || o != 0 {
			t.Errorf("with a template %d instances of api and %d of other are within reach", a, o)
		}
		b.drain("w1", true)
		b.pass(10 * time.Second)
		if n := names("api"); n != 0 {
			t.Errorf("after the end of the instance %d are within reach", n)
		}
	})
}
