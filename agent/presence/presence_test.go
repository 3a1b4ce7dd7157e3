package presence

import (
	"log/slog"
	"testing"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/steer"
	"pando.run/pando/driver/sim"
	"pando.run/pando/edge"
)

// verdicts are those of the probes.
type verdicts struct{ edge.Liveness }

func (verdicts) Forged() uint64 { return 3 }

// A dead host gets no new flows while another one takes them. The last takers stay.
func TestADeadHostIsLeftOut(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	known := records.New(records.Config{Host: "h1"})
	p := New("h1", known, steer.New(sim.NewSteering(), nil, sim.Clock{}, log), verdicts{}, log)
	e := pando.Endpoints{Hosts: []pando.HostName{"h2", "h3"}, Seats: []pando.Seat{
		{Instance: "a", Host: 0, Phase: pando.PhaseInRotation},
		{Instance: "b", Host: 1, Phase: pando.PhaseInRotation}}}
	here := func(n pando.HostName) (pando.Host, bool) { return pando.Host{Name: n}, true }
	for _, c := range []struct {
		dead   []pando.HostName
		h2, h3 bool
	}{{nil, true, true}, {[]pando.HostName{"h3"}, true, false}, {[]pando.HostName{"h2", "h3"}, true, true}} {
		p.take(c.dead, nil)
		find := p.LeavingOut(known.World, e, nil, here)
		_, h2 := find("h2")
		_, h3 := find("h3")
		if h2 != c.h2 || h3 != c.h3 {
			t.Errorf("dead %v: h2 takes flows: %v, h3: %v", c.dead, h2, h3)
		}
	}
	if l := p.Losses(pando.Losses{}); l.Dead != "h2 h3" || l.Cut != "" || l.Forged != 3 {
		t.Errorf("the losses are %+v", l)
	}
}
