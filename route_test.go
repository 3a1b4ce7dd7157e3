package pando

import (
	"errors"
	"testing"
)

func TestParseRouter(t *testing.T) {
	for _, text := range []string{"192.0.2.1=64500", "2001:db8::1=4200000000", "192.0.2.1=1"} {
		r, err := ParseRouter(text)
		if err != nil || r.String() != text {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
	for _, text := range []string{
		"", "192.0.2.1", "192.0.2.1=", "192.0.2.1=0", "192.0.2.1=4294967295", "192.0.2.1=4294967296",
		"192.0.2.1=65535", "192.0.2.1=23456", "192.0.2.1=-1", "192.0.2.1=AS64500", "=64500",
		"router=64500", "192.0.2.1:179=64500", "0.0.0.0=64500", "224.0.0.5=64500", "fe80::1%eth0=64500",
		"192.0.2.0/24=64500",
	} {
		if r, err := ParseRouter(text); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v, %v, want an error", text, r, err)
		}
	}
}
