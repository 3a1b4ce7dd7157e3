package pando

import (
	"errors"
	"testing"
)

func TestAnExternalEndpointIsReadAsItIsWritten(t *testing.T) {
	for _, s := range []string{
		"192.0.2.7", "192.0.2.7:8080", "192.0.2.7:8080 weight 50", "2001:db8::1 weight 1",
		"[2001:db8::1]:80",
	} {
		e, err := ParseExternal(s)
		if err != nil || e.String() != s {
			t.Errorf("%q is read as %q, %v", s, e, err)
		}
	}
	for _, s := range []string{
		"", "example.org:80", "192.0.2.7:0", "192.0.2.7:8080 50", "192.0.2.7 weight 0",
		"192.0.2.7 weight 101", "192.0.2.7 weight x", "127.0.0.1:80", "0.0.0.0:80", "fe80::1%eth0",
		"169.254.169.254:80", "224.0.0.1", VIPs4.Addr().Next().String(),
	} {
		if e, err := ParseExternal(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q is read as %+v, %v", s, e, err)
		}
	}
}

func TestAServiceHasAnInstanceForEachEndpoint(t *testing.T) {
	a, _ := ParseExternal("192.0.2.1")
	b, _ := ParseExternal("192.0.2.2:80 weight 7")
	s := Spec{Endpoints: []External{a, b}, Ports: []Port{{Published: 80, Target: 8080,
		Protocol: TCP}}}.WithDefaults()
	if s.Scale.Min != 2 || s.Scale.Max != 2 || !s.Ordinals() || s.Rollout.Order != StartFirst ||
		s.Health.Live.Kind != ProbeTCP || len(s.Argv()) == 0 {
		t.Errorf("the defaults are %+v", s)
	}
	if e, ok := s.External(1); !ok || e.Address != a.Address || e.Weight != 100 {
		t.Errorf("the first is %+v", e)
	}
	if e, ok := s.External(2); !ok || e.Weight != 7 {
		t.Errorf("the second is %+v", e)
	}
	for _, n := range []int{0, 3, -1} {
		if e, ok := s.External(n); ok {
			t.Errorf("ordinal %d is %+v", n, e)
		}
	}
	more := s
	more.Endpoints = append([]External{a, b}, External{Address: a.Address, Port: 9})
	more = more.WithDefaults()
	if !s.RunsAs(more) {
		t.Error("an endpoint at the end replaces the others")
	}
	if more.RunsAs(s) {
		t.Error("an endpoint that leaves changes nothing")
	}
	more.Labels = map[string]string{"owner": "ann"}
	if !s.RunsAs(more) {
		t.Error("a label replaces endpoints")
	}
	more.Endpoints[0].Port = 9
	if s.RunsAs(more) {
		t.Error("another endpoint changes nothing")
	}
}
