package console

import (
	"bytes"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func TestBriefShowsTheTwoFiguresThatMatter(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "-1s", 0: "0s", 123456: "120µs", 12345678: "12ms",
		5292300 * time.Microsecond: "5.3s", 83*time.Second + 1: "1m23s",
		3*time.Hour + 25*time.Minute + 40*time.Second: "3h26m", 100 * time.Hour: "4d",
	} {
		if got := Brief(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

// The list of services and a history name what instances wait for.
func TestWhatInstancesWaitForIsNamed(t *testing.T) {
	of := func(id pando.InstanceID, p pando.Phase, reason, waits string) pando.InstanceStatus {
		return pando.InstanceStatus{Instance: pando.Instance{ID: id, Host: "h1", Phase: p,
			Reason: reason, Waits: waits}}
	}
	run := of("job-1", pando.PhaseStarting, "the program runs", "")
	run.Run = &pando.RunPart{Number: 1}
	var b bytes.Buffer
	Waiting(&b, []pando.ServiceStatus{{Instances: []pando.InstanceStatus{
		of("web-1", pando.PhasePlaced, "its image is on the way: r/a; it waits for registry r", ""),
		of("web-2", pando.PhaseInRotation, "steered to on this host", ""),
		of("web-3", pando.PhaseDraining, "more than wanted", "waits for 1 connection"), run,
	}}})
	const want = "web-1 on h1 is placed: its image is on the way: r/a; it waits for registry r\n" +
		"web-3 on h1 is draining: waits for 1 connection\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Every command that shows services names what stands in the way on the hosts, each thing once.
func TestTroublesAreNamed(t *testing.T) {
	var b bytes.Buffer
	here := func(name pando.HostName, l *pando.Losses) pando.HostStatus {
		return pando.HostStatus{Host: pando.Host{Name: name}, State: pando.HostHere, Losses: l}
	}
	gone := here("h5", nil)
	gone.State, gone.Heard, gone.ServerSilent = pando.HostAway, consoletest.Noon, true
	odd := here("h6", nil)
	odd.Unread = "read the map drops: permission denied"
	Troubles(&b, []pando.HostStatus{
		here("h1", &pando.Losses{Dead: "h4", Cut: "h2"}), here("h2", &pando.Losses{Cut: "h1"}),
		here("h3", &pando.Losses{Silent: "web-1 (it is stopped)", Resolvers: "192.0.2.1:53 (asked 2s ago)"}),
		here("h4", nil), gone, odd,
	})
	const want = "the agent of h4 does not answer the server\nh5 is away since 12:00:00Z\n" +
		"the server of h5 does not answer the one that was asked\n" +
		"h6 cannot say what its steering lost: read the map drops: permission denied\n" +
		"h4 answers no probe of h1: it gets no new connections from there\n" +
		"between h1 and h2 no packet comes through, and both live: they send each other no new " +
		"connections\n" +
		"h3 asks again, for these programs run without a shim that answers: web-1 (it is stopped)\n" +
		"name servers do not answer h3: 192.0.2.1:53 (asked 2s ago)\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
