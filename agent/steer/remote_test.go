package steer

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

func TestRemotesOfARecord(t *testing.T) {
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }
	hosts := map[pando.HostName]pando.Host{
		"h1":    {Name: "h1", Address: addr(1), Tunnel: true},
		"h2":    {Name: "h2", Address: addr(2), Tunnel: true},
		"away":  {Name: "away", Address: addr(3), Tunnel: true},
		"older": {Name: "older", Address: addr(4)},
	}
	find := func(n pando.HostName) (pando.Host, bool) { return hosts[n], n != "away" }
	record := pando.Endpoints{Hosts: []pando.HostName{"away", "gone", "h1", "h2", "older"}}
	seat := func(i pando.InstanceID, host int, p pando.Phase, weight int) {
		record.Seats = append(record.Seats,
			pando.Seat{Instance: i, Host: host, Phase: p, Revision: 7, Weight: weight})
	}
	seat("web-9", 3, pando.PhaseInRotation, 100)
	seat("web-1", 2, pando.PhaseInRotation, 100) // on the host of the table
	seat("web-2", 3, pando.PhaseReady, 50)
	seat("web-3", 3, pando.PhaseDraining, 100)
	seat("web-4", 3, pando.PhasePlaced, 100)
	seat("web-5", 3, pando.PhaseWarm, 100)
	seat("web-6", 0, pando.PhaseInRotation, 100)
	seat("web-7", 1, pando.PhaseInRotation, 100)
	seat("web-8", 4, pando.PhaseInRotation, 100)
	want := []pando.Endpoint{
		{Instance: "web-2", Revision: 7, Weight: 50, Remote: addr(2)},
		{Instance: "web-3", Revision: 7, Remote: addr(2)},
		{Instance: "web-6", Revision: 7, Remote: addr(3), Silent: true},
		{Instance: "web-9", Revision: 7, Weight: 100, Remote: addr(2)},
	}
	if got := Remotes(record, "h1", find); !reflect.DeepEqual(got, want) {
		t.Errorf("the endpoints on other hosts are\n%+v, want\n%+v", got, want)
	}
}

// An instance of another host has an address for sockets while that host counts them, and while its
// ports are those of the table.
func TestRemotesForSockets(t *testing.T) {
	host := pando.Host{Name: "h2", Slot: 3, Address: netip.MustParseAddr("192.0.2.2"), Tunnel: true,
		Straight: true}
	record := pando.Endpoints{Hosts: []pando.HostName{"h2"}, Service: pando.Service{Target: 2},
		Balance: pando.Balance{At: pando.AtConnect},
		Seats: []pando.Seat{
			{Instance: "web-1", Phase: pando.PhaseInRotation, Revision: 2, Weight: 1, At: 5},
			{Instance: "web-2", Phase: pando.PhaseInRotation, Revision: 1, Weight: 1, At: 6},
			{Instance: "web-3", Phase: pando.PhaseDraining, Revision: 2},
		}}
	find := func(pando.HostName) (pando.Host, bool) { return host, true }
	own := func() (all []string) {
		for _, e := range Remotes(record, "h1", find) {
			if e.Own4.IsValid() {
				all = append(all, string(e.Instance)+" "+e.Own4.String()+" "+e.Own6.String())
			}
		}
		return all
	}
	range4, _ := pando.InstanceRange(3)
	if got := own(); len(got) != 1 || !strings.HasPrefix(got[0], "web-1 ") ||
		!range4.Contains(netip.MustParseAddr(strings.Fields(got[0])[1])) {
		t.Errorf("addresses for sockets: %v, want that of web-1", got)
	}
	host.Straight = false
	if got := own(); len(got) > 0 {
		t.Errorf("a host of an older build has %v", got)
	}
	host.Straight, record.Balance.At = true, pando.AtPacket
	if got := own(); len(got) > 0 {
		t.Errorf("a service that chooses by packets has %v", got)
	}
}

func TestLocalEndpointsArePreferredByWeight(t *testing.T) {
	local := func(weights ...int) (out []pando.Endpoint) {
		for _, w := range weights {
			out = append(out, pando.Endpoint{Weight: w})
		}
		return out
	}
	for name, c := range map[string]struct {
		local, remote []pando.Endpoint
		want          []int
	}{
		"alone":                    {local(100, 0), nil, []int{100, 0}},
		"beside one that takes":    {local(100, 0, 1), local(100), []int{125, 0, 2, 100}},
		"beside one that drains":   {local(100), local(0), []int{100, 0}},
		"none here":                {nil, local(100, 50), []int{100, 50}},
		"a weight is never lifted": {local(0), local(100), []int{0, 100}},
	} {
		var got []int
		for _, e := range Prefer(c.local, c.remote) {
			got = append(got, e.Weight)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: weights %v, want %v", name, got, c.want)
		}
	}
}

// A publication that leaves out a host is in force: a drain does not wait for it. It is repeated
// until there is a way.
func TestAHostOutOfReachHoldsNothingUp(t *testing.T) {
	onRig(t, func(r *rig) {
		away := pando.Unreached(map[netip.Addr]error{netip.MustParseAddr("192.0.2.9"): errKernel})
		out := true
		r.partly = func(s pando.ServiceKey) error {
			if out {
				return fmt.Errorf("publish %s: %w", s, away)
			}
			return nil
		}
		s := service(1)
		r.change(s)
		if err := r.queue.Wait(r.ctx, s); err != nil {
			t.Fatal(err)
		}
		st := r.queue.Status(s)
		if !errors.Is(st.Err, errKernel) || st.Applied != st.Wanted || st.Next.IsZero() {
			t.Errorf("without a way to a host, the status is %+v", st)
		}
		if text := r.queue.Unreached(); !strings.Contains(text, "192.0.2.9") {
			t.Errorf("the hosts out of reach: %q", text)
		}
		r.set(func() { out = false })
		time.Sleep(RetryWaitMax)
		synctest.Wait()
		if st, text := r.queue.Status(s), r.queue.Unreached(); st.Err != nil || text != "" {
			t.Errorf("with a way again: %v, out of reach %q", st.Err, text)
		}
	})
}
