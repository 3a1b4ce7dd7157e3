package api

import (
	"testing"

	"pando.run/pando"
)

func TestSumsOfCountersNeverFall(t *testing.T) {
	web, shop := pando.DefaultService("web"), pando.DefaultService("shop")
	of := func(s pando.ServiceKey, i string, h string, flows uint64) pando.EndpointCounters {
		return pando.EndpointCounters{Service: s, Instance: pando.InstanceID(i),
			Host: pando.HostName(h), Flows: flows, Bytes: 10 * flows}
	}
	type look = []pando.EndpointCounters
	var sums tally
	for n, c := range []struct {
		name string
		look
		want uint64
	}{
		{"the first look is zero", look{of(web, "a", "h1", 100)}, 0},
		{"growth counts", look{of(web, "a", "h1", 130)}, 30},
		{"a new endpoint counts whole", look{of(web, "a", "h1", 130), of(web, "b", "h1", 5)}, 35},
		{"an endpoint ends", look{of(web, "b", "h1", 6)}, 36},
		{"a host is new", look{of(web, "b", "h1", 6), of(web, "b", "h2", 900)}, 36},
		{"both hosts count", look{of(web, "b", "h1", 7), of(web, "b", "h2", 902)}, 39},
		{"a host is silent", look{of(web, "b", "h1", 8)}, 40},
		{"it answers again", look{of(web, "b", "h1", 8), of(web, "b", "h2", 903)}, 41},
		{"a counter begins again", look{of(web, "b", "h1", 2), of(web, "b", "h2", 903)}, 43},
		{"another service", look{of(web, "b", "h1", 2), of(shop, "c", "h1", 9)}, 43},
	} {
		got := sums.add([]pando.ServiceKey{web}, c.look)
		if got[web].flows != c.want || got[web].bytes != 10*c.want || len(got) != 1 {
			t.Fatalf("look %d, %s: %+v, want %d flows", n, c.name, got, c.want)
		}
	}
}

// The memory follows the endpoints that there are, and those of the last hour.
func TestATallyForgets(t *testing.T) {
	web := pando.DefaultService("web")
	var sums tally
	for n := range 3 * missesMax {
		sums.add([]pando.ServiceKey{web}, []pando.EndpointCounters{{
			Service: web, Instance: pando.InstanceID(rune('a' + n)), Host: "h1", Flows: 1,
		}})
	}
	if len(sums.last) > missesMax+1 {
		t.Errorf("%d endpoints after %d looks", len(sums.last), 3*missesMax)
	}
	if sums.add(nil, nil); len(sums.last)+len(sums.sums) > 0 {
		t.Errorf("without services: %d endpoints, %d sums", len(sums.last), len(sums.sums))
	}
}
