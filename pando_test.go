package pando

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
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
	if err := (Member{Name: "h1", Server: true, PublicKey: "x"}).Admits([]byte("new")); err != nil {
		t.Errorf("the server's own agent makes a new key at every start: %v", err)
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

// TestTheIndexNamesEveryFile holds doc.go against the tree: each place in the index exists, and
// each file of this package with a noun is in the index.
func TestTheIndexNamesEveryFile(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]bool{}
	row := regexp.MustCompile(`(?m)^\t[A-Za-z ]+?\s{2,}(\S+)\s{2,}\S`)
	for _, m := range row.FindAllStringSubmatch(file.Doc.Text(), -1) {
		places[m[1]] = true
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("doc.go: %v", err)
		}
	}
	if len(places) < 8 {
		t.Fatalf("the index has %d places: the test does not read it", len(places))
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 5 {
		t.Fatalf("found %v (%v)", files, err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if nouns(f) && !strings.HasSuffix(name, "_test.go") && !places[name] {
			t.Errorf("%s: doc.go lists no noun of it", name)
		}
	}
}

// nouns reports whether a file exports a type.
func nouns(f *ast.File) bool {
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
			return true
		}
	}
	return false
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
