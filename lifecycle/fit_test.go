package lifecycle

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// zoned returns hosts with labels: a1 and a2 in zone a, b1 in zone b, c in no zone.
func zoned() []pando.Host {
	return []pando.Host{
		{Name: "a1", Labels: "disk=ssd zone=a", Memory: 100, Tunnel: true},
		{Name: "a2", Labels: "zone=a", Memory: 100, Tunnel: true},
		{Name: "b1", Labels: "zone=b", Memory: 100, Tunnel: true},
		{Name: "c", Memory: 100, Tunnel: true},
	}
}

// wish returns a wish with some instances of the service on hosts, and the hosts of another one.
func wish(rule pando.Place, beside map[pando.HostName]int, apart ...pando.HostName) Wish {
	return Wish{
		Spec: pando.Spec{Name: "web", Resources: pando.Resources{MemoryBytes: 60}}.WithDefaults(),
		Rule: rule, Beside: func(h pando.HostName) int { return beside[h] },
		Apart: func(h pando.HostName) bool {
			for _, o := range apart {
				if o == h {
					return true
				}
			}
			return false
		},
		Loads: map[pando.HostName]Load{},
	}
}

func TestPlaceKeepsTheRule(t *testing.T) {
	type there = map[pando.HostName]int
	for _, c := range []struct {
		name   string
		rule   pando.Place
		beside there
		apart  []pando.HostName
		full   []pando.HostName
		want   pando.HostName
		why    string
	}{
		{name: "no rule", want: "a1", why: "least loaded"},
		{name: "only", rule: pando.Place{Only: "zone=b"}, want: "b1"},
		{name: "only, by another value", rule: pando.Place{Only: "zone=c"}, want: ""},
		{name: "one host", rule: pando.Place{Only: "host=a1"}, want: "a1"},
		{name: "only, and full", rule: pando.Place{Only: "zone=a"}, full: []pando.HostName{"a1"},
			want: "a2"},
		{name: "apart", rule: pando.Place{Apart: "db"}, apart: []pando.HostName{"a1", "a2"}, want: "b1"},
		{name: "apart, everywhere", rule: pando.Place{Apart: "db"},
			apart: []pando.HostName{"a1", "a2", "b1", "c"}, want: ""},
		{name: "spread over hosts", rule: pando.Place{Spread: "host"},
			beside: there{"a1": 1, "a2": 1, "c": 1}, want: "b1", why: "the fewest instances of web (0)"},
		{name: "spread over hosts again", rule: pando.Place{Spread: "host"},
			beside: there{"a1": 2, "a2": 1, "b1": 2, "c": 2}, want: "a2", why: "(1)"},
		{name: "spread over zones", rule: pando.Place{Spread: "zone"},
			beside: there{"a1": 1, "c": 1}, want: "b1", why: `of zone "b"`},
		{name: "spread in a zone", rule: pando.Place{Spread: "zone"},
			beside: there{"a1": 1, "b1": 2, "c": 2}, want: "a2"},
		{name: "spread over zones, the best is full", rule: pando.Place{Spread: "zone"},
			beside: there{"a1": 1, "c": 1}, full: []pando.HostName{"b1"}, want: "a2"},
		{name: "all of it", rule: pando.Place{Spread: "host", Only: "zone=a", Apart: "db"},
			beside: there{"a2": 3}, apart: []pando.HostName{"a1"}, want: "a2"},
	} {
		w := wish(c.rule, c.beside, c.apart...)
		for _, h := range c.full {
			w.Loads[h] = Load{MemoryBytes: 50}
		}
		h, why, err := Place(zoned(), w)
		switch {
		case c.want == "" && !errors.Is(err, pando.ErrNoRoom):
			t.Errorf("%s: got %s, %v; want ErrNoRoom", c.name, h.Name, err)
		case c.want == "" && !strings.Contains(err.Error(), "pando why web --pending"):
			t.Errorf("%s: %v has no next step", c.name, err)
		case h.Name != c.want || !strings.Contains(why, c.why):
			t.Errorf("%s: got %s (%s), %v; want %s", c.name, h.Name, why, err, c.want)
		}
	}
}

func TestExplainNamesTheReasonOfEachHost(t *testing.T) {
	here := Standing{Here: true}
	all := []Candidate{
		{pando.Host{Name: "away"}, Standing{}},
		{pando.Host{Name: "frozen", Frozen: "the store is empty"}, Standing{Here: true, Leaving: true}},
		{pando.Host{Name: "full", Labels: "zone=a", Memory: 10, Tunnel: true}, here},
		{pando.Host{Name: "leaves"}, Standing{Here: true, Leaving: true}},
		{pando.Host{Name: "next", Labels: "zone=a", Tunnel: true}, here},
		{pando.Host{Name: "other", Labels: "zone=b"}, here},
		{pando.Host{Name: "removed"}, Standing{Here: true, Removed: true}},
		{pando.Host{Name: "second", Labels: "zone=a", Tunnel: true}, here},
		{pando.Host{Name: "shunned", Labels: "zone=a", Tunnel: true}, here},
	}
	w := wish(pando.Place{Spread: "host", Only: "zone=a", Apart: "db"},
		map[pando.HostName]int{"second": 2}, "shunned")
	want := map[pando.HostName]string{
		"away": "it is away", "frozen": "it is frozen: the store is empty",
		"full":   "it is full: 0 of 10 bytes of memory are given away, and the instance may use 60",
		"leaves": "it leaves", "next": "on next, with the fewest instances of web (0)",
		"other": "it lacks the label zone=a", "removed": "it was removed from the cluster",
		"second":  "it has room; next comes first",
		"shunned": "it has instances of db, and the service stays apart from it",
	}
	got := Explain(all, w, "")
	for n, f := range got {
		if f.Host != all[n].Host.Name || f.Reason != want[f.Host] || f.Next != (f.Host == "next") ||
			f.Takes != (f.Host == "next" || f.Host == "second") {
			t.Errorf("%+v, want %q", f, want[f.Host])
		}
	}
	if n := got[7].Instances; n != 2 {
		t.Errorf("the second host has %d instances, want 2", n)
	}
	for _, f := range Explain(all, w, "it waits") {
		if f.Takes || f.Next || f.Reason == "" {
			t.Errorf("a service that waits: %+v", f)
		}
	}
	w.Home = "second"
	for _, f := range Explain(all, w, "") {
		if f.Next != (f.Host == "second") || f.Reason == "" {
			t.Errorf("with a home: %+v", f)
		}
	}
	if f := Explain(all, w, "")[4]; f.Reason != "all instances run near the first, on second" {
		t.Errorf("beside the home: %+v", f)
	}
	all[7].Unfit = "lacks the label zone=z"
	if f := Explain(all, w, "")[7]; f.Takes || f.Reason != "it lacks the label zone=z" {
		t.Errorf("a home that breaks the rule: %+v", f)
	}
	all[5].PIDs, w.Home, w.Rule = 5, "", pando.Place{}
	w.Loads["other"], w.Loads["second"] = Load{PIDs: 5}, Load{Instances: InstancesPerHostMax}
	w.Spec.Resources.PIDs = 1
	fits := Explain(all, w, "")
	if !strings.Contains(fits[5].Reason, "5 of 5 processes") ||
		!strings.Contains(fits[7].Reason, "it has 3500 instances") {
		t.Errorf("full hosts: %+v, %+v", fits[5], fits[7])
	}
}

// For any hosts, loads and rule: the chosen host keeps the rule and has room, the order of the
// hosts does not matter, and Explain agrees with Place.
func TestPlaceIsDeterministicAndKeepsEveryRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var hosts []pando.Host
		beside, loads := map[pando.HostName]int{}, map[pando.HostName]Load{}
		var apart []pando.HostName
		for n := range rapid.IntRange(0, 8).Draw(t, "hosts") {
			h := pando.Host{
				Name: pando.HostName(fmt.Sprintf("h%d", n)), CPUs: 4, Memory: 600, PIDs: 100,
				Tunnel: rapid.IntRange(0, 5).Draw(t, "tunnel") > 0,
				Labels: rapid.SampledFrom([]string{"", "zone=a", "zone=b", "disk=ssd zone=a"}).Draw(t, "l"),
			}
			beside[h.Name] = rapid.IntRange(0, 4).Draw(t, "beside")
			loads[h.Name] = Load{
				Instances: beside[h.Name], MemoryBytes: int64(rapid.IntRange(0, 600).Draw(t, "memory")),
				PIDs: int64(rapid.IntRange(0, 100).Draw(t, "pids")),
			}
			if rapid.IntRange(0, 3).Draw(t, "apart") == 0 {
				apart = append(apart, h.Name)
			}
			hosts = append(hosts, h)
		}
		w := wish(pando.Place{
			Spread: rapid.SampledFrom([]string{"", "host", "zone"}).Draw(t, "spread"),
			Only:   rapid.SampledFrom([]string{"", "zone=a", "zone=c"}).Draw(t, "only"),
			Apart:  pando.ServiceName(rapid.SampledFrom([]string{"", "db"}).Draw(t, "other")),
		}, beside, apart...)
		w.Loads = loads
		h, why, err := Place(hosts, w)
		mixed, mixedWhy, mixedErr := Place(rapid.Permutation(hosts).Draw(t, "order"), w)
		if !reflect.DeepEqual(h, mixed) || why != mixedWhy || (err == nil) != (mixedErr == nil) {
			t.Fatalf("%s (%s) or %s (%s): the order decides", h.Name, why, mixed.Name, mixedWhy)
		}
		all := make([]Candidate, len(hosts))
		for n, o := range hosts {
			all[n] = Candidate{o, Standing{Here: true}}
		}
		takes, next := 0, pando.HostName("")
		can := func(h *pando.Host) bool {
			return w.with(h).fits(h) && Unfit(*h, w.Rule, w.Apart, w.Lacks) == ""
		}
		for n, f := range Explain(all, w, "") {
			if ok := can(&hosts[n]); f.Takes != ok || f.Reason == "" {
				t.Fatalf("%+v, and the host can take it: %t", f, ok)
			}
			if f.Takes {
				takes++
			}
			if f.Next {
				next += f.Host
			}
		}
		if (err == nil) != (takes > 0) || next != h.Name {
			t.Fatalf("placed on %q (%v); Explain returns %q, %d take it", h.Name, err, next, takes)
		}
		if err == nil && w.Rule.Spread == "host" {
			for n, o := range hosts {
				if can(&hosts[n]) && beside[o.Name] < beside[h.Name] {
					t.Fatalf("placed on %s with %d, and %s has %d", h.Name, beside[h.Name], o.Name,
						beside[o.Name])
				}
			}
		}
	})
}

// A full host counts in its zone, so the chosen host is the same as in the explanation.
func TestAFullHostCountsInItsZone(t *testing.T) {
	w := wish(pando.Place{Spread: "zone"}, map[pando.HostName]int{"a1": 1, "b1": 1, "b2": 2})
	w.Loads["b2"] = Load{MemoryBytes: 90}
	hosts := append(zoned()[:1:1], zoned()[2], pando.Host{
		Name: "b2", Labels: "zone=b", Memory: 100, Tunnel: true})
	var all []Candidate
	for _, h := range hosts {
		all = append(all, Candidate{h, Standing{Here: true}})
	}
	h, _, err := Place(hosts, w)
	if got := Explain(all, w, ""); err != nil || h.Name != "a1" || !got[0].Next {
		t.Errorf("placed on %s (%v), explained as %+v", h.Name, err, got)
	}
}

// Instances that start one after another differ by one at most over hosts, and over zones.
func TestSpreadIsEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := pando.Place{Spread: rapid.SampledFrom([]string{"host", "zone"}).Draw(t, "spread")}
		var hosts []pando.Host
		for n := range rapid.IntRange(1, 7).Draw(t, "hosts") {
			hosts = append(hosts, pando.Host{
				Name: pando.HostName(fmt.Sprintf("h%d", n)), Tunnel: true,
				Labels: rapid.SampledFrom([]string{"zone=a", "zone=b", "zone=c"}).Draw(t, "zone"),
			})
		}
		beside := map[pando.HostName]int{}
		w := wish(rule, beside)
		for range rapid.IntRange(1, 30).Draw(t, "instances") {
			h, _, err := Place(hosts, w)
			if err != nil {
				t.Fatal(err)
			}
			beside[h.Name]++
			w.Loads[h.Name] = w.Loads[h.Name].Plus(one(w.Spec.Resources))
		}
		groups := map[string]int{}
		for _, h := range hosts {
			group := string(h.Name)
			if rule.Spread == "zone" {
				group = h.Labels
			}
			groups[group] += beside[h.Name]
		}
		least, most := 1<<30, 0
		for _, n := range groups {
			least, most = min(least, n), max(most, n)
		}
		if most-least > 1 {
			t.Fatalf("%d to %d instances: %v", least, most, groups)
		}
	})
}

func TestAServiceSpreadsOverHostsThatReceiveConnections(t *testing.T) {
	hosts := append(zoned(), pando.Host{Name: "older", Memory: 100})
	w := wish(pando.Place{Spread: "host"}, map[pando.HostName]int{"a1": 1, "a2": 1, "b1": 1, "c": 1})
	if h, _, err := Place(hosts, w); err != nil || h.Name != "a1" {
		t.Errorf("placed on %s, %v", h.Name, err)
	}
	why := Unfit(hosts[4], w.Rule, w.Apart, w.Lacks)
	if !strings.Contains(why, "receives no connections") {
		t.Errorf("the older host is unfit: %q", why)
	}
	if why := Unfit(hosts[4], pando.Place{}, w.Apart, nil); why != "" {
		t.Errorf("the older host as a home is unfit: %q", why)
	}
}

// spreading returns hosts, and the wish of a service that spreads over them. looks counts the
// questions about a host.
func spreading(n int, looks *int) ([]pando.Host, Wish) {
	hosts, loads := make([]pando.Host, n), map[pando.HostName]Load{}
	for n := range hosts {
		h := pando.Host{Name: pando.HostName(fmt.Sprintf("h%04d", n)), CPUs: 64, Tunnel: true}
		hosts[n], loads[h.Name] = h, Load{Instances: 100}
	}
	w := Wish{Rule: pando.Place{Spread: pando.SpreadHost}, Loads: loads}
	w.Beside = func(pando.HostName) int {
		*looks++
		return 1
	}
	return hosts, w
}

// A placement looks at each host once, and once more at the chosen one.
func TestAPlacementLooksAtEachHostOnce(t *testing.T) {
	looks := 0
	hosts, w := spreading(1000, &looks)
	if h, why, err := Place(hosts, w); err != nil || h.Name != "h0000" {
		t.Fatalf("placed on %s: %s, %v", h.Name, why, err)
	}
	if looks > len(hosts)+1 {
		t.Errorf("%d looks at %d hosts", looks, len(hosts))
	}
}

func BenchmarkAPlacementAmongAThousandHosts(b *testing.B) {
	looks := 0
	hosts, w := spreading(1000, &looks)
	for range b.N {
		if _, _, err := Place(hosts, w); err != nil {
			b.Fatal(err)
		}
	}
}

// The instances of one tenant on a host leave places to another tenant, and those of all tenants leave
// some to operators.
func TestATenantLeavesPlacesOnAHost(t *testing.T) {
	held := map[pando.Tenant]int{}
	on := func(tenant pando.Tenant) error {
		all := 0
		for _, n := range held {
			all += n
		}
		w := Wish{Spec: pando.Spec{Name: "web", Tenant: tenant}, Home: "a",
			Loads: map[pando.HostName]Load{"a": {Instances: all}},
			Seats: func(pando.HostName) (int, int) { return held[tenant], held[pando.DefaultTenant] }}
		_, _, err := Place([]pando.Host{{Name: "a"}}, w)
		return err
	}
	fill := func(tenant pando.Tenant) {
		for on(tenant) == nil {
			held[tenant]++
		}
	}
	fill("acme")
	if held["acme"] != InstancesPerHostMax/2 {
		t.Errorf("acme has %d instances", held["acme"])
	}
	if err := on("acme"); !errors.Is(err, pando.ErrNoRoom) || !strings.Contains(err.Error(), "1750 of the 1750 that one owner") {
		t.Errorf("one more: %v", err)
	}
	fill("bank")
	fill("coop")
	if n := held["acme"] + held["bank"] + held["coop"]; n != InstancesPerHostMax-InstancesPerHostMax/16 {
		t.Errorf("all tenants have %d instances", n)
	}
	fill(pando.DefaultTenant)
	if held[pando.DefaultTenant] != InstancesPerHostMax/16 {
		t.Errorf("operators have %d instances", held[pando.DefaultTenant])
	}
}
