package pando

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Router is a neighbour of a host that speaks BGP.
type Router struct {
	Address netip.Addr `json:"address"`
	AS      uint32     `json:"as"` // its autonomous system
}

// ParseRouter returns the router of a text such as 192.0.2.1=64500.
func ParseRouter(text string) (r Router, err error) {
	at, as, ok := strings.Cut(text, "=")
	if r.Address, err = netip.ParseAddr(at); !ok || err != nil || r.Address.Zone() != "" ||
		r.Address.IsUnspecified() || r.Address.IsMulticast() {
		return Router{}, fmt.Errorf("%w: router %q: want ADDRESS=AS, such as 192.0.2.1=64500",
			ErrInvalid, text)
	}
	if r.AS, err = ParseAS(as); err != nil {
		return Router{}, fmt.Errorf("router %q: %w", text, err)
	}
	return r, nil
}

// ParseAS returns the number of an autonomous system.
func ParseAS(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 || n == 23456 || n == 65535 || n == 1<<32-1 {
		return 0, fmt.Errorf("%w: %q is no number of an autonomous system; the private ones are "+
			"64512 to 65534", ErrInvalid, text)
	}
	return uint32(n), nil
}

// String returns the text that ParseRouter reads.
func (r Router) String() string { return fmt.Sprintf("%s=%d", r.Address, r.AS) }

// RouterStatus is the session of a host with one router.
type RouterStatus struct {
	Router
	Up    bool      `json:"up"`
	Since time.Time `json:"since,omitzero"` // when the session came up
	// Why is the cause of a session that is down.
	Why string `json:"why,omitempty"`
}

// Routes are the routes that one host announces to routers. ServicesMax bounds them.
type Routes struct {
	VIPs    int            `json:"vips"`              // announced, at most 2 for each service
	Unable  int            `json:"unable,omitempty"`  // services without a way to their instances
	Why     string         `json:"why,omitempty"`     // the host announces none, with the cause
	Blind   string         `json:"blind,omitempty"`   // the host does not follow the store, and why
	Routers []RouterStatus `json:"routers,omitempty"` // in the order of the flags
}

// Routers announces VIPs to the routers of this host's network. driver/network/bgp implements it.
type Routers interface {
	// Serve keeps the sessions with the routers until ctx ends. The routes then stay for the time of a
	// restart, unless withdraws returns true.
	Serve(ctx context.Context, withdraws func() bool) error
	// Announce adds routes to VIPs. A VIP that is announced already stays.
	Announce(vips []netip.Addr) error
	// Withdraw removes routes to VIPs.
	Withdraw(vips []netip.Addr) error
	// Status returns the sessions.
	Status() []RouterStatus
}
