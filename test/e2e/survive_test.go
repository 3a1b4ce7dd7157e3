package e2e

import (
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

func TestKilledDaemonsBreakNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		kill func(p *labtest.Pando)
	}{
		{"agent", func(p *labtest.Pando) { p.KillAgent(p.Host()) }},
		{"server", func(p *labtest.Pando) { p.KillServer(p.Host()) }},
		{"both", func(p *labtest.Pando) { p.KillAgent(p.Host()); p.KillServer(p.Host()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := labtest.Up(t)
			web := p.Deploy(labtest.Echo("web", "scale: {min: 2, max: 4}"))
			before := names(web.AwaitInstances(2))
			held := web.Hold(labtest.Client)
			c.kill(p)
			if got := web.Get(labtest.Client, "/"); !strings.HasPrefix(got, "web-") {
				t.Errorf("without an instance a new connection got %q", got)
			}
			p.Up(p.Host())
			if after := names(web.AwaitInstances(2)); after != before {
				t.Errorf("the instances are %s, before they were %s", after, before)
			}
			p.Pando("scale", "web", "3", "--wait")
			if out := held.Stop(); out.Code != 0 {
				t.Errorf("a connection was broken: %s", out.Text)
			}
		})
	}
}

func names(st pando.ServiceStatus) string {
	var all []string
	for _, i := range st.Instances {
		all = append(all, string(i.ID))
	}
	return strings.Join(all, " ")
}

func TestServicesReturnFromTheDataFolderAlone(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	p.Down(p.Host(), "--now") // only the data folder remains
	p.Up(p.Host())
	web.AwaitPage(labtest.Client)
	web.AwaitInstances(1)
}

func TestLogsAreFollowed(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	logs := p.Start(p.Host(), p.Bin, "logs", "-f", "web")
	logs.AwaitText("hello from web-")
	for n := range 3 {
		web.Get(labtest.Client, fmt.Sprintf("/print?text=line%d", n))
		logs.AwaitText(fmt.Sprintf("line%d", n))
	}
}

func TestReserveIsClaimed(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "scale: {min: 1, max: 4, warm: 1}"))
	var reserve pando.InstanceID
	web.Await("a reserve", func(st pando.ServiceStatus) bool {
		for _, i := range st.Instances {
			if i.Phase == pando.PhaseWarm {
				reserve = i.ID
			}
		}
		return reserve != ""
	})
	p.Pando("scale", "web", "2")
	web.Await("the reserve in rotation", func(st pando.ServiceStatus) bool {
		for _, i := range st.Instances {
			if i.ID == reserve && i.Phase == pando.PhaseInRotation {
				return true
			}
		}
		return false
	})
	p.Pando("scale", "web", "1", "--wait") // --wait must not wait for the reserve to be filled again
}
