package ovs

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

var (
	mac  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	web  = pando.DefaultService("web")
	vip4 = netip.MustParseAddr("10.127.0.7")
	vip6 = netip.MustParseAddr("fd70:616e:646f:ffff::7")

	ports = []pando.Port{
		{Published: 80, Target: 8080, Protocol: pando.TCP},
		{Published: 53, Target: 5353, Protocol: pando.UDP},
	}
)

func TestSlotsFollowWeights(t *testing.T) {
	for _, c := range []struct {
		name string
		all  []share
		want map[uint16]int
	}{
		{"none takes flows", []share{{1, 0}, {2, -5}}, map[uint16]int{}},
		{"one", []share{{1, 100}}, map[uint16]int{1: 64}},
		{"equal", []share{{1, 100}, {2, 100}}, map[uint16]int{1: 32, 2: 32}},
		{"one drains", []share{{1, 100}, {2, 0}}, map[uint16]int{1: 64}},
		{"three to one", []share{{1, 300}, {2, 100}}, map[uint16]int{1: 48, 2: 16}},
		{"a small weight has a slot", []share{{1, 1_000_000}, {2, 1}}, map[uint16]int{1: 64, 2: 1}},
	} {
		got := map[uint16]int{}
		for _, port := range slots(c.all) {
			got[port]++
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		for port, n := range c.want {
			if got[port] != n {
				t.Errorf("%s: port %d has %d slots, want %d", c.name, port, got[port], n)
			}
		}
	}
	many := make([]share, slotsMax)
	for n := range many {
		many[n] = share{uint16(n + 1), 100}
	}
	if n := len(slots(many)); n != slotsMax {
		t.Errorf("%d endpoints have %d slots, want %d", slotsMax, n, slotsMax)
	}
}

func TestDifferenceKeepsCounters(t *testing.T) {
	was, now := rules{}, rules{}
	was.add(1, 10, "tcp", "0x1", "output:1")
	was.add(1, 20, "udp", "0x1", "output:1")
	was.add(2, 10, "tcp", "0x1", "output:1")
	now.add(1, 10, "tcp", "0x1", "output:1")
	now.add(2, 10, "tcp", "0x1", "output:2")
	now.add(3, 0, "", "0x2")
	want := []string{
		"flow add table=2,priority=10,tcp,cookie=0x1,actions=output:2",
		"flow add table=3,priority=0,cookie=0x2,actions=drop",
		"flow delete_strict table=1,priority=20,udp",
	}
	if got := was.difference(now); !slices.Equal(got, want) {
		t.Errorf("the difference is %q, want %q", got, want)
	}
	if got := now.difference(now); len(got) != 0 {
		t.Errorf("equal rules differ by %q", got)
	}
}

func TestADrainingEndpointGetsNoNewFlows(t *testing.T) {
	table := pando.SteeringTable{Service: web, VIP4: vip4, VIP6: vip6, Ports: ports}
	shares := []share{{3, 100}, {4, 0}}
	learned := serviceRules(table, 9, Learn, shares)
	choice := learned["table=22,priority=10,reg1=9"].Actions
	if !strings.Contains(choice, "bundle_load(") || strings.Contains(choice, "4,4") ||
		!strings.Contains(choice, "members:3,3,") {
		t.Errorf("the bundle is %q", choice)
	}
	again := learned["table=21,priority=20,reg1=9,reg0=4,tcp,tcp_flags=+syn-ack"].Actions
	if again != "load:0->NXM_NX_REG0[],goto_table:22" {
		t.Errorf("a used pair of ports at a draining endpoint: %q", again)
	}
	known := learned["table=20,priority=90,tcp,nw_dst=10.127.0.7,tp_dst=80"].Actions
	if known != "load:9->NXM_NX_REG1[],resubmit(,10),goto_table:21" {
		t.Errorf("a packet to the service: %q", known)
	}
	grouped := serviceRules(table, 9, Group, shares)
	if got := grouped["table=22,priority=10,reg1=9"].Actions; got != "group:9" {
		t.Errorf("the choice of a group is %q", got)
	}
	group := buckets(9, "", shares)
	for _, want := range []string{"bucket_id:3,weight:100", "bucket_id:4,weight:0"} {
		if !strings.Contains(group, want) {
			t.Errorf("the group %q has no %q", group, want)
		}
	}
	table.By = pando.ByClient
	choice = serviceRules(table, 9, Learn, shares)["table=22,priority=10,reg1=9"].Actions
	if !strings.HasPrefix(choice, "bundle_load(nw_src,") {
		t.Errorf("by client, the bundle is %q", choice)
	}
	if group := buckets(9, table.By, shares); !strings.Contains(group, "fields(ip_src,ipv6_src),") {
		t.Errorf("by client, the group is %q", group)
	}
	if _, ok := serviceRules(table, 9, Learn, shares[1:])["table=22,priority=10,reg1=9"]; ok {
		t.Error("a service without an endpoint has a choice")
	}
}

func TestAnInstanceSpeaksForItselfAndItsPorts(t *testing.T) {
	p := plug{Port: 3, Ports: ports, VIP4: vip4, VIP6: vip6, Link: pando.Link{
		IP4: netip.MustParseAddr("10.128.0.2"), MAC: mac, HostMAC: mac,
	}}
	r := p.rules(Learn)
	from := "table=1,priority=60,in_port=3,dl_src=02:00:00:00:00:01,"
	self := "table=1,priority=50,in_port=3,dl_src=02:00:00:00:00:01,"
	for match, want := range map[string]string{
		from + "tcp,nw_src=10.127.0.7,tp_src=8080":  "set_field:80->tcp_src,goto_table:2",
		self + "ip,nw_src=10.128.0.2":               "goto_table:2",
		"table=40,priority=10,reg0=3,udp,tp_dst=53": "set_field:5353->udp_dst,goto_table:41",
	} {
		if got := r[match].Actions; got != want {
			t.Errorf("%s: %q, want %q", match, got, want)
		}
	}
	for key := range r {
		if strings.Contains(key, "ipv6_src=invalid") {
			t.Errorf("a link without IPv6 has the rule %q", key)
		}
	}
}

func TestScoresBecomeWeights(t *testing.T) {
	s := service{
		Ports: map[pando.InstanceID]uint16{"a": 1, "b": 2, "c": 3},
		Table: pando.SteeringTable{By: pando.ByScore, Endpoints: []pando.Endpoint{
			{Instance: "a", Weight: 100}, {Instance: "b", Weight: 100}, {Instance: "c", Weight: 0},
		}},
		Scores: map[pando.InstanceID]pando.Score{"a": {Value: 0}, "b": {Value: 1}},
	}
	got := s.shares()
	if got[0].Weight < 5*got[1].Weight || got[1].Weight == 0 || got[2].Weight != 0 {
		t.Errorf("shares by score: %v", got)
	}
	s.Scores["a"] = pando.Score{Excluded: true}
	if got := s.shares(); got[0].Weight != 0 || got[1].Weight == 0 {
		t.Errorf("a is excluded: %v", got)
	}
	s.Table.By = pando.ByHash
	if got := s.shares(); got[0].Weight != 100 {
		t.Errorf("by hash: %v", got)
	}
}

func TestInstancesOfOtherHostsAreNamed(t *testing.T) {
	far := netip.MustParseAddr("198.51.100.2")
	table := pando.SteeringTable{Endpoints: []pando.Endpoint{
		{Instance: "a", Weight: 100}, {Instance: "b", Weight: 100, Remote: far},
	}}
	whole := table.Endpoints
	out := leaveOut(&table)
	if len(table.Endpoints) != 1 || table.Endpoints[0].Instance != "a" || out[far] == nil {
		t.Errorf("left are %v, without a way are %v", table.Endpoints, out)
	}
	if whole[1].Instance != "b" {
		t.Error("the caller's table has changed")
	}
	if err := (&Driver{}).Neighbours(t.Context(), []pando.Host{{Name: "h2"}}); err == nil {
		t.Error("another host is taken in silence")
	}
}

func TestAmbiguousPortsAreRefused(t *testing.T) {
	if err := unambiguous(ports); err != nil {
		t.Error(err)
	}
	twice := append(slices.Clone(ports), pando.Port{Published: 81, Target: 8080, Protocol: pando.TCP})
	if err := unambiguous(twice); err == nil || !strings.Contains(err.Error(), "80 and 81") {
		t.Errorf("two ports with one target: %v", err)
	}
	if err := unambiguous([]pando.Port{{Published: 1, Protocol: "sctp"}}); err == nil {
		t.Error("an unknown protocol is taken")
	}
}
