package ebpf

import (
	"net"
	"testing"
	"time"

	"pando.run/pando"
)

var scored = pando.DefaultService("scored")

// publishScored publishes a service by score with two endpoints.
func publishScored(t *testing.T, d *Driver) {
	t.Helper()
	table := pando.SteeringTable{Service: scored, By: pando.ByScore}
	for n, i := range []pando.InstanceID{"a", "b"} {
		table.Endpoints = append(table.Endpoints, pando.Endpoint{Instance: i, Weight: 100,
			Link: pando.Link{IfIndex: 100 + n, MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(n)}}})
	}
	if err := d.Publish(t.Context(), table); err != nil {
		t.Fatal(err)
	}
}

// holds compares the scores in the kernel, and checks that they are valid from now on.
func holds(t *testing.T, d *Driver, want map[pando.InstanceID]uint32) {
	t.Helper()
	n := d.index.services[scored]
	for i, value := range want {
		var got uint32
		if err := d.objects.Scores.Lookup(d.index.endpoints[n][i], &got); err != nil || got != value {
			t.Errorf("the score of %s is %d, want %d; %v", i, got, value, err)
		}
	}
	var p steerPolicy
	now, err := monotonic()
	if err == nil {
		err = d.objects.Policies.Lookup(n, &p)
	}
	if err != nil || p.By != byScore || p.Until <= now || p.Until > now+uint64(pando.ScoresHold) {
		t.Errorf("the policy is %+v at %d; %v", p, now, err)
	}
}

var ranking = pando.Ranking{Scores: []pando.Score{{Instance: "a", Value: 0.25},
	{Instance: "b", Value: 1, Excluded: true}, {Instance: "unknown", Value: 1}}}

// A score is in force at once while a publication or a sweep holds the lock of the driver.
func TestAScoreWaitsForNoPublication(t *testing.T) {
	f := openFaulty(t)
	publishScored(t, f.Driver)
	f.mu.Lock()
	defer f.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- f.Score(t.Context(), scored, ranking) }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the score waits for the lock of the driver")
	}
	holds(t, f.Driver, map[pando.InstanceID]uint32{"a": scoreOne / 4, "b": scoreOne + excluded})
}

// A service that is withdrawn has no scores, and none are written into its former slots.
func TestAScoreOfAWithdrawnService(t *testing.T) {
	f := openFaulty(t)
	publishScored(t, f.Driver)
	slot := f.index.endpoints[f.index.services[scored]]["a"]
	if err := f.Withdraw(t.Context(), scored); err != nil {
		t.Fatal(err)
	}
	if err := f.Score(t.Context(), scored, ranking); err != nil {
		t.Fatal(err)
	}
	var got uint32
	if err := f.objects.Scores.Lookup(slot, &got); err != nil || got != 0 {
		t.Errorf("the former slot has the score %d; %v", got, err)
	}
}

// The counters of endpoints are those of their slots, however many there are.
func TestTheCountersOfEndpoints(t *testing.T) {
	f := openFaulty(t)
	table := pando.SteeringTable{Service: scored}
	names := map[pando.InstanceID]uint64{}
	for n := range 3 * trafficAtOnce / 2 {
		i := pando.InstanceID("i" + string(rune('a'+n%26)) + time.Duration(n).String())
		names[i] = uint64(n)
		table.Endpoints = append(table.Endpoints, pando.Endpoint{Instance: i, Weight: 1,
			Link: pando.Link{IfIndex: 1000 + n}})
	}
	if err := f.Publish(t.Context(), table); err != nil {
		t.Fatal(err)
	}
	for i, n := range names {
		slot := f.index.endpoints[f.index.services[scored]][i]
		perCPU := make([]steerCounters, f.flows.counts.cpus)
		perCPU[0] = steerCounters{Flows: n, Packets: 2 * n, Bytes: 3 * n, Ends: 4 * n}
		perCPU[len(perCPU)-1].Flows += 1
		if err := f.objects.Traffic.Put(slot, perCPU); err != nil {
			t.Fatal(err)
		}
	}
	all, err := f.Counters(t.Context())
	if err != nil || len(all) != len(names) {
		t.Fatalf("%d counters, want %d; %v", len(all), len(names), err)
	}
	for _, c := range all {
		n := names[c.Instance]
		want := pando.EndpointCounters{Service: scored, Instance: c.Instance, Flows: n + 1,
			Packets: 2 * n, Bytes: 3 * n, Ends: 4 * n}
		if c != want {
			t.Errorf("%+v, want %+v", c, want)
		}
	}
}
