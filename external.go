package pando

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// ExternalsMax bounds the endpoints of one spec that Pando does not start.
const ExternalsMax = 256

// External is an endpoint that Pando does not start: a port of a machine or of another program. An
// instance without a program stands for it. The instance's namespace translates the addresses of
// its flows.
type External struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"`   // 0: the target of each port
	Weight  int        `json:"weight,omitempty"` // 1 to 100; 0: 100
}

// ParseExternal reads ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT with an optional "weight N".
func ParseExternal(s string) (e External, err error) {
	wrong := fmt.Errorf("%w: %q: want an address with a port, such as 192.0.2.7:8080 or "+
		"192.0.2.7:8080 weight 50", ErrInvalid, s)
	words := strings.Fields(s)
	if len(words) != 1 && (len(words) != 3 || words[1] != "weight") {
		return e, wrong
	}
	if e.Address, err = netip.ParseAddr(words[0]); err != nil {
		at, err := netip.ParseAddrPort(words[0])
		if err != nil || at.Port() == 0 {
			return e, wrong
		}
		e.Address, e.Port = at.Addr(), at.Port()
	}
	if len(words) == 3 {
		if e.Weight, err = strconv.Atoi(words[2]); err != nil || e.Weight < 1 || e.Weight > 100 {
			return e, fmt.Errorf("%w: %q: want a weight of 1 to 100", ErrInvalid, s)
		}
	}
	e.Address = e.Address.Unmap()
	return e, e.Check()
}

// Check returns nil if flows can be sent to the endpoint, else the reason.
func (e External) Check() error {
	a := e.Address
	switch {
	case !a.IsValid():
		return fmt.Errorf("%w: an endpoint has no address", ErrInvalid)
	case a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() ||
		a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast():
		return fmt.Errorf("%w: endpoint %s: its address has no meaning on another machine: give an "+
			"address that every host reaches", ErrInvalid, a)
	case VIPs4.Contains(a) || VIPs6.Contains(a):
		return fmt.Errorf("%w: endpoint %s is the VIP of a service: point clients to that service",
			ErrInvalid, a)
	case e.Weight < 0 || e.Weight > 100:
		return fmt.Errorf("%w: endpoint %s: weight %d: want 1 to 100", ErrInvalid, a, e.Weight)
	}
	return nil
}

// String returns the words that ParseExternal reads.
func (e External) String() string {
	s := e.Address.String()
	if e.Port != 0 {
		s = netip.AddrPortFrom(e.Address, e.Port).String()
	}
	if e.Weight != 0 {
		s += fmt.Sprintf(" weight %d", e.Weight)
	}
	return s
}

// External returns the endpoint for which the instance with an ordinal stands. Ordinals begin at 1.
func (s Spec) External(ordinal int) (External, bool) {
	if ordinal < 1 || ordinal > len(s.Endpoints) {
		return External{}, false
	}
	e := s.Endpoints[ordinal-1]
	if e.Weight == 0 {
		e.Weight = 100
	}
	return e, true
}

// idle is the program of an instance that stands for an external endpoint.
var idle = []string{"sleep", "infinity"}
