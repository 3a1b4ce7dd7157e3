package pando

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// seated returns the endpoints of a service with instances on ten hosts.
func seated(n int) Endpoints {
	svc := Service{ServiceKey: DefaultService("web"), Target: 2, Phase: ServiceServing,
		Reason: `of "seats":[["a",1]] and \"seats\":[`}
	var all []Instance
	for n := range n {
		all = append(all, Instance{ID: InstanceID(fmt.Sprint("web-", n)), Weight: 100, Revision: 2,
			Host: HostName(fmt.Sprint("h", n%10)), Phase: PhaseInRotation, Since: born, Born: born})
	}
	return EndpointsOf(svc, Spec{Name: "web"}, all)
}

// Endpoints are read alike by the fast way and by encoding/json.
func TestEndpointsAreReadAlikeBothWays(t *testing.T) {
	for _, n := range []int{1, 2, 300} {
		text, err := json.Marshal(seated(n))
		if err != nil {
			t.Fatal(err)
		}
		var slow, fast Endpoints
		if err := json.Unmarshal(text, &slow); err != nil {
			t.Fatal(err)
		}
		if !fast.ReadWritten(text) || !reflect.DeepEqual(fast, slow) {
			t.Errorf("%d seats are read as\n%+v, want\n%+v", n, fast, slow)
		}
	}
}

// Any other form is left to encoding/json.
func TestOtherEndpointsTakeTheLongWay(t *testing.T) {
	text, err := json.Marshal(seated(3))
	if err != nil {
		t.Fatal(err)
	}
	was := string(text)
	for name, other := range map[string]string{
		"no seats":         `{"service":{}}`,
		"an escaped name":  strings.Replace(was, `["web-1"`, `["web-\u0031"`, 1),
		"a space":          strings.Replace(was, `["web-1",`, `["web-1", `, 1),
		"a later field":    strings.Replace(was, `]]`, `,"later"]]`, 1),
		"a cut":            was[:len(was)-1],
		"a zero ahead":     strings.Replace(was, `,100,`, `,0100,`, 1),
		"a large number":   strings.Replace(was, `,100,`, `,1000000000000000000000,`, 1),
		"another's seats":  `{"later":` + was + `,"hosts":[]}`,
		"two lists":        `{"later":` + was + `,` + was[1:],
		"no end of a seat": strings.Replace(was, `],["web-2`, `,["web-2`, 1),
	} {
		if (&Endpoints{}).ReadWritten([]byte(other)) {
			t.Errorf("%s is read the fast way: %s", name, other)
		}
	}
}

// FuzzEndpoints reads any text by both ways, and alike where the fast way takes it.
func FuzzEndpoints(f *testing.F) {
	text, _ := json.Marshal(seated(2))
	f.Add(string(text))
	f.Add(`{"seats":[["a",0,"ready",1,1,-0]]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var slow, fast Endpoints
		if !fast.ReadWritten([]byte(text)) {
			return
		}
		if err := json.Unmarshal([]byte(text), &slow); err != nil || !reflect.DeepEqual(fast, slow) {
			t.Errorf("%s is read as\n%+v, want\n%+v (%v)", text, fast, slow, err)
		}
	})
}

// BenchmarkEndpointsOfAHundred reads the record that each host reads at each change of a service.
func BenchmarkEndpointsOfAHundred(b *testing.B) {
	text, err := json.Marshal(seated(100))
	if err != nil {
		b.Fatal(err)
	}
	for name, read := range map[string]func(*Endpoints) bool{
		"fast": func(e *Endpoints) bool { return e.ReadWritten(text) },
		"json": func(e *Endpoints) bool { return json.Unmarshal(text, e) == nil },
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				if e := (Endpoints{}); !read(&e) || e.Seats[0].Since != born.Truncate(time.Millisecond) {
					b.Fatalf("%+v", e)
				}
			}
		})
	}
}
