package e2e

import (
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// The first packet to a service without an instance starts one, and its client repeats nothing. An
// idle instance leaves again.
func TestAServiceStartsFromZero(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "scale: {min: 0, max: 3, idle: 1s}"))
	if st := web.AwaitInstances(0); st.Phase != pando.ServiceServing {
		t.Fatalf("without an instance it is %s (%s)", st.Phase, st.Reason)
	}
	repeated := func(from string) string {
		out := p.Must(from, "nstat", "-asz", "TcpRetransSegs", "TcpExtTCPSynRetrans")
		return strings.Join(strings.Fields(out), " ")
	}
	for _, from := range []string{labtest.Client, p.Host()} {
		before := repeated(from)
		took := p.Must(from, "curl", "-sf", "-o", "/dev/null", "-m", "20", "-w", "%{time_starttransfer}",
			web.URL("/"))
		t.Logf("from %s the first byte took %s s", from, took)
		if after := repeated(from); after != before {
			t.Errorf("%s repeated a packet: %s, then %s", from, before, after)
		}
		web.AwaitInstances(0)
	}
	why := p.Pando("why", "web")
	for _, want := range []string{"a packet came while no instance ran", "scale.idle"} {
		if !strings.Contains(why, want) {
			t.Errorf("why has no %q:\n%s", want, why)
		}
	}
	// Without idle no packet starts an instance, and the operator learns that.
	cure := "add idle: 60s to scale"
	has(t, p.Pando("deploy", p.Write("deaf.yaml", labtest.Echo("deaf", "scale: {min: 0, max: 3}"))), cure)
	has(t, p.Pando("status", "deaf"), cure)
	has(t, p.Pando("why", "deaf"), cure)
	var deaf pando.ServiceStatus
	p.PandoJSON(&deaf, "status", "deaf")
	out := p.Run(labtest.Client, "curl", "-sS", "-m", "5", "http://"+deaf.VIP+"/")
	has(t, out.Text, "curl: (7)") // refused, and not in silence
	got := p.Must(labtest.Client, p.WithEcho(), "udp", fmt.Sprint(web.VIP, ":7"), "hi")
	if !strings.HasSuffix(got, " hi\n") {
		t.Errorf("the first datagram got %q", got)
	}
}
