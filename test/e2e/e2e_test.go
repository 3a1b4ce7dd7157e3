// Package e2e drives the real pando as an operator does, on virtual hosts. Each test reads like a
// sentence about a user's view; lab/labtest has the mechanics.
package e2e

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

func TestServiceIsServedAtItsVIP(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	for _, from := range []string{p.Host(), labtest.Client} {
		if got := web.Get(from, "/"); !strings.HasPrefix(got, "web-") {
			t.Errorf("%s got %q", from, got)
		}
		p.Must(from, "ping", "-c", "1", "-W", "5", web.VIP)
		got := p.Must(from, p.WithEcho(), "udp", web.VIP+":7", "hi")
		if !strings.HasSuffix(got, " hi\n") {
			t.Errorf("%s got the datagram %q", from, got)
		}
	}
}

func TestNamesOfServicesAreAnswered(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	if got := p.Must(p.Host(), p.WithEcho(), "lookup", "web.pando",
		pando.Gateway4.String()); !strings.Contains(got, web.VIP) {
		t.Errorf("the host received %q, want %s", got, web.VIP)
	}
	if got := web.Get(labtest.Client, "/lookup?name=web.pando"); !strings.Contains(got, web.VIP) {
		t.Errorf("an instance received %q, want %s", got, web.VIP)
	}
	p.Deploy(labtest.Echo("api"))
	if got := web.Get(labtest.Client, "/get?url=http://api.pando/"); !strings.HasPrefix(got, "api-") {
		t.Errorf("an instance that uses another service got %q", got)
	}
}

func TestACrashBelowMinIsReplacedAndExplained(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	for range 3 {
		old := web.AwaitInstances(1).Instances[0]
		web.Kill(old.ID)
		web.Await("another instance", func(st pando.ServiceStatus) bool {
			return st.InRotation == 1 && st.Instances[0].ID != old.ID
		})
	}
	why := web.Why()
	if !strings.Contains(why, "exited with 9") || !strings.Contains(why, "hello from web-") {
		t.Errorf("why does not name the cause and the last lines:\n%s", why)
	}
	if n := web.Status().Failures; n != 3 {
		t.Errorf("%d failures are counted, want 3", n)
	}
}

func TestScalingByHandExpires(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "scale: {min: 1, max: 4}"))
	p.Pando("scale", "web", "3", "--for", "1h", "--wait")
	if n := web.Status().InRotation; n != 3 {
		t.Errorf("%d in rotation after --wait, want 3", n)
	}
	p.Pando("scale", "web", "3", "--for", "1s")
	web.AwaitInstances(1)
	if st := web.Status(); st.Pin != nil {
		t.Errorf("the pin is still there: %+v", st.Pin)
	}
}

func TestNewRevisionRollsInAndNothingBreaks(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "environment: {TEXT: one}"))
	held := web.Hold(labtest.Client)
	web.Update(labtest.Echo("web", "environment: {TEXT: two}"))
	if got := web.Get(labtest.Client, "/"); !strings.HasSuffix(got, " two") {
		t.Errorf("after the rollout a new connection got %q", got)
	}
	if out := held.Stop(); out.Code != 0 || !strings.HasSuffix(out.Text, " one\n") {
		t.Errorf("the connection of old: %s", out.Text)
	}
	web.AwaitInstances(1)
}

func TestBadRevisionRollsBack(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "environment: {TEXT: one}"))
	held := web.Hold(labtest.Client)
	said := web.UpdateFails(7,
		strings.Replace(labtest.Echo("web"), "[./echo]", `[sh, -c, "echo no database; exit 3"]`, 1))
	for _, want := range []string{"exited with 3", "no database"} {
		if !strings.Contains(said, want) {
			t.Errorf("the command does not print %q:\n%s", want, said)
		}
	}
	web.Await("the old revision in force", func(st pando.ServiceStatus) bool {
		return st.Current == 1 && st.Target == 1 && st.Phase == pando.ServiceServing && st.InRotation == 1
	})
	if got := web.Get(labtest.Client, "/"); !strings.HasSuffix(got, " one") {
		t.Errorf("after the rollback a connection got %q", got)
	}
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("the connection of old: %s", out.Text)
	}
}

func TestRemovedServiceDrains(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	held := web.Hold(labtest.Client)
	rm := p.Start(p.Host(), p.Bin, "rm", "web", "--wait")
	web.Await("an instance that drains", func(st pando.ServiceStatus) bool {
		return len(st.Instances) == 1 && st.Instances[0].Phase == pando.PhaseDraining
	})
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("the connection was broken: %s", out.Text)
	}
	p.Await("web to be gone", func() (string, bool) {
		out := p.Run(p.Host(), p.Bin, "status", "web")
		return out.Text, out.Code == 4
	})
	if out := rm.Wait(); out.Code != 0 {
		t.Errorf("pando rm: %s", out.Text)
	}
}

func TestDownWithPurgeLeavesNothing(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	p.Deploy(labtest.Echo("web", "scale: {min: 2, max: 4}"))
	if len(p.Left(p.Host())) == 0 {
		t.Fatal("nothing of a running Pando was found: this test looks in the wrong place")
	}
	p.Down(p.Host(), "--purge")
	p.Await("nothing left", func() (string, bool) {
		left := p.Left(p.Host())
		return strings.Join(left, "\n"), len(left) == 0
	})
	links := p.Must(p.Host(), "ip", "-br", "link")
	if strings.Contains(links, "pd") || strings.Contains(links, "pando") {
		t.Errorf("links are left:\n%s", links)
	}
}
