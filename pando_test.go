package pando

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var allPhases = []Phase{
	PhasePlaced, PhaseStarting, PhaseWarm, PhaseReady, PhaseInRotation,
	PhaseDraining, PhaseDrained, PhaseFailed, PhaseMerged, PhaseDead,
}

func TestEveryPhaseEndsAsDeadAndNeverLoopsBackFromDraining(t *testing.T) {
	for _, p := range allPhases {
		if !p.Known() {
			t.Errorf("phase %q is unknown", p)
		}
		if !reaches(p, PhaseDead) {
			t.Errorf("phase %q never ends", p)
		}
	}
	for _, p := range []Phase{PhaseDraining, PhaseDrained, PhaseFailed, PhaseMerged, PhaseDead} {
		for _, q := range allPhases {
			if q.TakesFlows() && reaches(p, q) {
				t.Errorf("an instance comes back: %q reaches %q", p, q)
			}
		}
	}
	if Phase("hibernating").Known() {
		t.Error("a phase of a newer build is known")
	}
}

// reaches reports whether legal steps lead from p to q.
func reaches(p, q Phase) bool {
	seen := map[Phase]bool{}
	var walk func(Phase) bool
	walk = func(at Phase) bool {
		if at == q {
			return true
		}
		if seen[at] {
			return false
		}
		seen[at] = true
		for _, next := range phaseNext[at] {
			if walk(next) {
				return true
			}
		}
		return false
	}
	return walk(p)
}

func TestAPhaseThatTakesFlowsKeepsThem(t *testing.T) {
	for _, p := range allPhases {
		if p.TakesFlows() && (!p.KeepsFlows() || p.Leaving()) {
			t.Errorf("%q takes flows: keeps %v, leaving %v", p, p.KeepsFlows(), p.Leaving())
		}
		if p.Leaving() && (Instance{Phase: p}).Capacity() {
			t.Errorf("%q is leaving and counts as capacity", p)
		}
	}
	if (Instance{Phase: PhaseReady, Warm: true}).Capacity() {
		t.Error("a reserve counts against max")
	}
}

func TestAnIllegalStepPanics(t *testing.T) {
	at := time.Unix(100, 0)
	i := Instance{ID: "web-1", Phase: PhasePlaced}.Become(PhaseStarting, at, "started")
	if i.Phase != PhaseStarting || !i.Since.Equal(at) || i.Reason != "started" {
		t.Errorf("%+v", i)
	}
	dead := Instance{Phase: PhaseDead}
	panics(t, "an instance from dead to ready", func() { dead.Become(PhaseReady, at, "") })
	asked := Intent{ID: "1"}.Become(IntentAsked, at, "load")
	granted := asked.Become(IntentGranted, at.Add(1), "below max")
	if len(asked.History) != 1 || len(granted.History) != 2 || !granted.Asked().Equal(at) {
		t.Errorf("histories %v and %v", asked.History, granted.History)
	}
	panics(t, "an intent from granted to asked", func() { granted.Become(IntentAsked, at, "") })
	if !IntentRefused.Ended() || IntentGranted.Ended() {
		t.Error("refused is final, granted is not")
	}
}

func TestStepsOfAnIntentDoNotShareAHistory(t *testing.T) {
	asked := Intent{ID: "1"}.Become(IntentAsked, time.Unix(1, 0), "")
	a := asked.Become(IntentGranted, time.Unix(2, 0), "a")
	b := asked.Become(IntentRefused, time.Unix(2, 0), "b")
	if a.History[1].Reason != "a" || b.History[1].Reason != "b" {
		t.Errorf("histories are mixed: %v and %v", a.History, b.History)
	}
}

func panics(t *testing.T, step string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", step)
		}
	}()
	f()
}

func FuzzServiceKeySurvivesItsText(f *testing.F) {
	for _, s := range []string{
		"web", "shop/web", "default/web", "", "/", "a/b/c", "Web", "a-", "ä", strings.Repeat("a", 54),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseServiceKey(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v is not ErrInvalid", s, err)
			}
			return
		}
		again, err := ParseServiceKey(k.String())
		if err != nil || again != k {
			t.Errorf("%q: %v becomes %v (%v)", s, k, again, err)
		}
		if found, ok := k.Key().Service(); !ok || found != k {
			t.Errorf("%q: key %s names %v", s, k.Key(), found)
		}
	})
}

func TestEveryKeyNamesItsKindAndService(t *testing.T) {
	web := ServiceKey{Tenant: "shop", Name: "web"}
	for _, c := range []struct {
		stored Stored
		kind   Kind
	}{
		{Service{ServiceKey: web}, KindService},
		{Revision{Service: web, Number: 12}, KindRevision},
		{Instance{Service: web, Host: "h1", ID: "web-1"}, KindInstance},
		{Intent{Service: web, ID: "01"}, KindIntent},
		{Decision{Service: web, ID: "02"}, KindDecision},
		{StateHead{Service: web}, KindHead},
	} {
		k := c.stored.Key()
		if s, ok := k.Service(); k.Kind() != c.kind || !ok || s != web {
			t.Errorf("%T: key %s: kind %q, service %v", c.stored, k, k.Kind(), s)
		}
	}
	for _, k := range []Key{
		Host{Name: "h1"}.Key(), Member{Name: "h1"}.Key(), LeaderKey("control"), Root,
		"/other/service/a/b",
	} {
		if s, ok := k.Service(); ok {
			t.Errorf("key %s names the service %v", k, s)
		}
	}
	if a, b := RevisionKey(web, 9), RevisionKey(web, 10); a >= b {
		t.Errorf("revisions are out of order: %s, %s", a, b)
	}
}

func TestHostsHaveAddressesOfTheirOwn(t *testing.T) {
	seen4, seen6 := map[netip.Prefix]int{}, map[netip.Prefix]int{}
	for slot := range HostSlots {
		v4, v6 := InstanceRange(slot)
		if before, taken := seen4[v4]; taken || v4 != v4.Masked() {
			t.Fatalf("slot %d has %s, as slot %d", slot, v4, before)
		}
		if before, taken := seen6[v6]; taken || v6 != v6.Masked() {
			t.Fatalf("slot %d has %s, as slot %d", slot, v6, before)
		}
		if v4.Overlaps(VIPs4) || v6.Overlaps(VIPs6) {
			t.Fatalf("slot %d: %s or %s overlaps the VIPs", slot, v4, v6)
		}
		seen4[v4], seen6[v6] = slot, slot
	}
}

func TestAHostClaimsOnlyTheAddressesOfItsSlot(t *testing.T) {
	v4, v6 := InstanceRange(3)
	other4, other6 := InstanceRange(4)
	for _, c := range []struct {
		name string
		host Host
		good bool
	}{
		{"its own", Host{Name: "h3", Slot: 3, Instances4: v4, Instances6: v6}, true},
		{"none yet", Host{Name: "h3", Slot: 3}, true},
		{"another's IPv4", Host{Name: "h3", Slot: 3, Instances4: other4, Instances6: v6}, false},
		{"another's IPv6", Host{Name: "h3", Slot: 3, Instances4: v4, Instances6: other6}, false},
		{"below the first slot", Host{Name: "h3", Slot: -1}, false},
		{"beyond the last slot", Host{Name: "h3", Slot: HostSlots}, false},
	} {
		if err := c.host.Check(); (err == nil) != c.good || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestAMemberVouchesForItsOwnRecordOnly(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("2001:db8::3")
	m := Member{Name: "h3", Slot: 3, Address: four, Address6: six}
	m.PublicKey = PublicKeyHash([]byte("key"))
	good := Host{Name: "h3", Slot: 3, Address: four, Address6: six}
	if err := m.Vouches(good); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Host){
		func(h *Host) { h.Name = "h4" },
		func(h *Host) { h.Slot = 4 },
		func(h *Host) { h.Address = netip.MustParseAddr("192.0.2.4") },
		func(h *Host) { h.Address6 = netip.Addr{} },
		func(h *Host) { h.Instances4, _ = InstanceRange(4) },
	} {
		h := good
		change(&h)
		if err := m.Vouches(h); err == nil {
			t.Errorf("a member vouches for %+v", h)
		}
	}
	if err := m.Admits([]byte("key")); err != nil {
		t.Error(err)
	}
	if err := m.Admits([]byte("another")); !errors.Is(err, ErrForbidden) {
		t.Errorf("a former key is admitted: %v", err)
	}
	if err := (Member{Name: "h1", Server: true}).Admits([]byte("new")); err != nil {
		t.Errorf("the first server's own agent makes a new key at every start: %v", err)
	}
	promoted := Member{Name: "h2", Server: true, PublicKey: m.PublicKey}
	if err := promoted.Admits([]byte("another")); !errors.Is(err, ErrForbidden) {
		t.Errorf("a former key of a host that became a server is admitted: %v", err)
	}
}

func TestDefaultsAreFilledInOnce(t *testing.T) {
	once := Spec{Name: "web"}.WithDefaults()
	if twice := once.WithDefaults(); fmt.Sprint(once) != fmt.Sprint(twice) {
		t.Errorf("defaults change a spec that has them:\n%+v\n%+v", once, twice)
	}
	for _, c := range []struct {
		name   string
		scale  Scale
		order  RolloutOrder
		single bool
	}{
		{"no scale", Scale{}, StartFirst, false},
		{"max 1 given", Scale{Max: 1}, StopFirst, true},
		{"max 3", Scale{Max: 3}, StartFirst, false},
		{"min only", Scale{Min: 2}, StartFirst, false},
	} {
		s := Spec{Name: "web", Scale: c.scale}.WithDefaults()
		if s.Rollout.Order != c.order || s.Single() != c.single || s.Scale.Max < s.Scale.Min {
			t.Errorf("%s: order %s, single %v, scale %+v", c.name, s.Rollout.Order, s.Single(), s.Scale)
		}
	}
}

func TestAPinHoldsUntilItsEnd(t *testing.T) {
	now := time.Unix(1000, 0)
	var none *Pin
	for _, c := range []struct {
		pin  *Pin
		want bool
	}{
		{none, false}, {&Pin{}, true}, {&Pin{Until: now.Add(1)}, true}, {&Pin{Until: now}, false},
	} {
		if got := c.pin.Holds(now); got != c.want {
			t.Errorf("%+v: holds %v, want %v", c.pin, got, c.want)
		}
	}
}

func TestAnObjectIDSurvivesItsText(t *testing.T) {
	id := ObjectID{1, 2, 0xff}
	text, err := id.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var back ObjectID
	if err := back.UnmarshalText(text); err != nil || back != id || back.IsZero() {
		t.Errorf("%s becomes %s (%v)", id, back, err)
	}
	for _, bad := range []string{"", "ab", string(text[:38]), "zz" + string(text[2:])} {
		if err := new(ObjectID).UnmarshalText([]byte(bad)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q is read as an object: %v", bad, err)
		}
	}
}

// The ranges of a cluster choose the addresses of VIPs and of every host's instances.
func TestRangesOfAddresses(t *testing.T) {
	vips, instances := VIPs4, Instances4
	defer func() {
		if err := UseRanges(vips, instances); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		vips, instances string
		slots           int
		last            string // the instances of the last slot
	}{
		{"10.127.0.0/16", "10.128.0.0/10", 1024, "10.191.240.0/20"},
		{"192.168.0.0/16", "172.16.0.0/12", 256, "172.31.240.0/20"},
		{"10.1.0.0/16", "10.2.0.0/16", 16, "10.2.240.0/20"},
		{"10.127.0.0/16", "11.0.0.0/8", 1024, "11.63.240.0/20"},
		{"10.127.1.0/16", "10.128.0.0/10", 0, ""},
		{"10.127.0.0/17", "10.128.0.0/10", 0, ""},
		{"10.127.0.0/16", "10.128.0.0/20", 0, ""},
		{"10.127.0.0/16", "10.0.0.0/8", 0, ""},
		{"fd00::/16", "10.128.0.0/10", 0, ""},
		{"10.127.0.0/16", "fd00::/10", 0, ""},
	} {
		err := UseRanges(netip.MustParsePrefix(c.vips), netip.MustParsePrefix(c.instances))
		if c.slots == 0 {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("VIPs %s and instances %s: %v", c.vips, c.instances, err)
			}
			continue
		}
		if err != nil || Slots() != c.slots || Gateway4 != VIPs4.Addr().Next() {
			t.Errorf("VIPs %s and instances %s: %d slots, want %d (%v)",
				c.vips, c.instances, Slots(), c.slots, err)
		}
		four, six := InstanceRange(Slots() - 1)
		if four.String() != c.last {
			t.Errorf("the last slot of %s has %s, want %s", c.instances, four, c.last)
		}
		h := Host{Name: "h", Slot: Slots() - 1, Instances4: four, Instances6: six}
		if err := h.Check(); err != nil {
			t.Error(err)
		}
		if h.Slot++; !errors.Is(h.Check(), ErrInvalid) {
			t.Errorf("a host has slot %d of %d", h.Slot, Slots())
		}
	}
}

func TestASightingAcceptsItsOwnClusterOnly(t *testing.T) {
	seen := Sighting{Cluster: "a", Generation: 2, Revision: 100}
	at := func(id string, generation int) *Cluster {
		return &Cluster{ID: id, Generation: generation}
	}
	for _, c := range []struct {
		seen     Sighting
		store    *Cluster
		revision StoreRevision
		why      string // part of the refusal; "": accepted
	}{
		{Sighting{}, nil, 1, ""},
		{Sighting{}, at("b", 7), 1, ""},
		{seen, at("a", 2), 100, ""},
		{seen, at("a", 2), 101, ""},
		{seen, at("a", 3), 1, ""},
		{seen, at("a", 2), 99, "older copy"},
		{seen, at("a", 1), 900, "generation 1"},
		{seen, at("b", 2), 900, "cluster b"},
		{seen, at("b", 3), 900, "cluster b"},
		{seen, nil, 900, "empty or damaged"},
	} {
		err := c.seen.Accepts(c.store, c.revision)
		switch {
		case c.why == "" && err != nil:
			t.Errorf("%+v at %d is refused: %v", c.store, c.revision, err)
		case c.why == "":
		case !errors.Is(err, ErrFrozen) || !strings.Contains(err.Error(), c.why) ||
			!strings.Contains(err.Error(), "pando restore"):
			t.Errorf("%+v at %d: %v, want %q and the next command", c.store, c.revision, err, c.why)
		}
	}
}

var born = time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)

func TestEndpointsHaveWhatSteeringNeedsAndNoMore(t *testing.T) {
	web := DefaultService("web")
	at := func(id InstanceID, h HostName, p Phase) Instance {
		return Instance{
			ID: id, Service: web, Host: h, Phase: p, Revision: 2, Weight: 100,
			Born: born, Since: born.Add(time.Minute), IP4: netip.MustParseAddr("10.128.17.7"),
		}
	}
	e := EndpointsOf(Service{ServiceKey: web}, Spec{Ports: []Port{{Published: 80}}}, []Instance{
		at("a", "h2", PhasePlaced), at("b", "h1", PhaseStarting), at("c", "h1", PhaseWarm),
		at("d", "h2", PhaseInRotation), at("e", "h1", PhaseDrained), at("f", "h1", PhaseFailed),
	})
	then, ms := born.Add(time.Minute).Truncate(time.Millisecond), born.Truncate(time.Millisecond)
	want := []Seat{
		{"a", 1, PhasePlaced, 2, 100, ms, 0}, {"b", 0, PhasePlaced, 2, 100, ms, 0},
		{"c", 0, PhaseWarm, 2, 100, ms, 0}, {"d", 1, PhaseInRotation, 2, 100, then, 0x107},
		{"e", 0, PhaseDraining, 2, 100, time.Time{}, 0},
		{"f", 0, PhaseDraining, 2, 100, time.Time{}, 0},
	}
	if !reflect.DeepEqual(e.Seats, want) || !reflect.DeepEqual(e.Hosts, []HostName{"h1", "h2"}) {
		t.Errorf("the seats are %+v on %v,\nwant %+v", e.Seats, e.Hosts, want)
	}
	if !e.On("h1") || e.On("h3") || !slices.Equal(e.Takers(), []bool{false, true}) ||
		!slices.Equal(e.Keepers(), []bool{true, true}) ||
		e.HostOf(e.Seats[0]) != "h2" {
		t.Errorf("the hosts of %+v are confused", e)
	}
	b, err := json.Marshal(e)
	var back Endpoints
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil || !reflect.DeepEqual(back, e) || back.Check() != nil {
		t.Errorf("%s reads back as %+v (%v)", b, back, err)
	}
	// 3,000 instances of a service fit into one record of the store, which takes 1.5 MB.
	if each := len(b) / len(e.Seats); each > 200 {
		t.Errorf("a seat takes %d bytes: %s", each, b)
	}
}

func TestEndpointsThatContradictThemselvesAreRefused(t *testing.T) {
	for name, e := range map[string]Endpoints{
		"unsorted hosts":      {Hosts: []HostName{"h2", "h1"}},
		"no such host":        {Hosts: []HostName{"h1"}, Seats: []Seat{{Host: 1, Phase: PhaseReady}}},
		"a negative host":     {Hosts: []HostName{"h1"}, Seats: []Seat{{Host: -1, Phase: PhaseReady}}},
		"a phase of no build": {Hosts: []HostName{"h1"}, Seats: []Seat{{Phase: "singing"}}},
	} {
		if e.Check() == nil {
			t.Errorf("%s: the endpoints are believed", name)
		}
	}
}

// A seat leads to the addresses that its host gave the instance. One of an older build has none.
func TestASeatHasTheAddressesOfItsInstance(t *testing.T) {
	four, _ := InstanceRange(1)
	s := Seat{Phase: PhaseReady, At: placeIn(netip.MustParseAddr("10.128.17.7"))}
	v4, v6, ok := s.Addresses(1)
	if !ok || v4.String() != "10.128.17.7" || !four.Contains(v4) ||
		v6.String() != "fd70:616e:646f:1:1:0:a80:1107" {
		t.Errorf("the addresses are %s and %s (%v)", v4, v6, ok)
	}
	var old Seat
	if err := json.Unmarshal([]byte(`["a",0,"ready",1,100,0]`), &old); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := old.Addresses(1); ok || old.Instance != "a" {
		t.Errorf("the seat of an older build is %+v", old)
	}
}

// A name that JSON must escape takes the long way. Both ways read the same.
func TestASeatIsReadInBothForms(t *testing.T) {
	for _, id := range []InstanceID{"web-1", "a,b", `a"b`, `a\b`, "ä", "<&>", ""} {
		s := Seat{id, 3, PhaseInRotation, 7, 100, born.Truncate(time.Millisecond), len(id)}
		short, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		long := []byte(" " + strings.ReplaceAll(string(short), `,`, ` ,`))
		var one, two Seat
		if err := json.Unmarshal(short, &one); err != nil || one != s {
			t.Errorf("%s is read as %+v (%v)", short, one, err)
		}
		if err := json.Unmarshal(long, &two); id != "a,b" && (err != nil || two != s) {
			t.Errorf("%s is read as %+v (%v)", long, two, err)
		}
	}
	for _, text := range []string{
		`["a",1,"ready",1,1,x]`, `[a,1,"ready",1,1,0]`, `["a",1,"ready",1,1]`,
	} {
		if err := json.Unmarshal([]byte(text), &Seat{}); err == nil {
			t.Errorf("%s is read", text)
		}
	}
}

// FuzzSeat reads any text without a panic, and writes back the same seat.
func FuzzSeat(f *testing.F) {
	f.Add(`["web-1",0,"ready",1,100,1767323045678]`)
	f.Add(`["web-1",0,"ready",1,100,0,"of a newer build"]`)
	f.Add(`["web-1"]`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, text string) {
		var s, again Seat
		if json.Unmarshal([]byte(text), &s) != nil || text == "null" {
			return
		}
		b, err := json.Marshal(s)
		if err == nil {
			err = json.Unmarshal(b, &again)
		}
		if err != nil || again != s {
			t.Errorf("%s becomes %+v, then %s and %+v (%v)", text, s, b, again, err)
		}
	})
}

// A time that no duration holds is the longest one, and never a negative one.
func TestSecondsNeverChangeTheirSign(t *testing.T) {
	for s, want := range map[float64]time.Duration{
		0: 0, 1.5: 1500 * time.Millisecond, -2: -2 * time.Second, 4.2e307: math.MaxInt64,
		math.Inf(1): math.MaxInt64, -1e300: math.MinInt64, math.NaN(): 0, 9223372037: math.MaxInt64,
	} {
		if got := Seconds(s); got != want {
			t.Errorf("%g s are %v, want %v", s, got, want)
		}
	}
}
