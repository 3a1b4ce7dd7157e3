package pando

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

var born = time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)

func TestEndpointsHaveWhatSteeringNeedsAndNoMore(t *testing.T) {
	web := DefaultService("web")
	at := func(id InstanceID, h HostName, p Phase) Instance {
		return Instance{
			ID: id, Service: web, Host: h, Phase: p, Revision: 2, Weight: 100,
			Born: born, Since: born.Add(time.Minute),
		}
	}
	e := EndpointsOf(Service{ServiceKey: web}, Spec{Ports: []Port{{Published: 80}}}, []Instance{
		at("a", "h2", PhasePlaced), at("b", "h1", PhaseStarting), at("c", "h1", PhaseWarm),
		at("d", "h2", PhaseInRotation), at("e", "h1", PhaseDrained), at("f", "h1", PhaseFailed),
	})
	then, ms := born.Add(time.Minute).Truncate(time.Millisecond), born.Truncate(time.Millisecond)
	want := []Seat{
		{"a", 1, PhasePlaced, 2, 100, ms}, {"b", 0, PhasePlaced, 2, 100, ms},
		{"c", 0, PhaseWarm, 2, 100, ms}, {"d", 1, PhaseInRotation, 2, 100, then},
		{"e", 0, PhaseDraining, 2, 100, time.Time{}}, {"f", 0, PhaseDraining, 2, 100, time.Time{}},
	}
	if !reflect.DeepEqual(e.Seats, want) || !reflect.DeepEqual(e.Hosts, []HostName{"h1", "h2"}) {
		t.Errorf("the seats are %+v on %v,\nwant %+v", e.Seats, e.Hosts, want)
	}
	if !e.On("h1") || e.On("h3") || e.TakesFlows(0) || !e.TakesFlows(1) ||
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

// A name that JSON must escape takes the long way. Both ways read the same.
func TestASeatIsReadInBothForms(t *testing.T) {
	for _, id := range []InstanceID{"web-1", "a,b", `a"b`, `a\b`, "ä", "<&>", ""} {
		s := Seat{id, 3, PhaseInRotation, 7, 100, born.Truncate(time.Millisecond)}
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
