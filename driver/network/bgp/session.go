package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"pando.run/pando"
)

// session is the state of the session with one router. The lock of the speaker guards it.
type session struct {
	up    bool
	since time.Time
	why   string // of the newest failure
}

// Status implements pando.Routers.
func (s *Speaker) Status() (all []pando.RouterStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.Routers {
		is := s.sessions[r.Address]
		st := pando.RouterStatus{Router: r, Up: is.up}
		switch {
		case is.up:
			st.Since = is.since
		case is.why == "":
			st.Why = "no answer yet"
		default:
			st.Why = is.why
		}
		all = append(all, st)
	}
	return all
}

// note follows the states of the sessions.
func (s *Speaker) note(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
	if e.Type != apiutil.PEER_EVENT_STATE && e.Type != apiutil.PEER_EVENT_INIT {
		return
	}
	p := e.Peer.State
	up := p.SessionState == bgp.BGP_FSM_ESTABLISHED
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.sessions[p.NeighborAddress]
	if is == nil {
		return
	}
	switch p.DisconnectReason {
	case api.PeerState_DISCONNECT_REASON_READ_FAILED,
		api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART:
		is.why = "the router closed the connection"
	case api.PeerState_DISCONNECT_REASON_INVALID_MSG: // GoBGP drops the router's message
		is.why = "the router refuses the session: probably the number of an autonomous system differs"
	}
	switch {
	case up && !is.up:
		is.since, is.why = s.Clock.Now(), ""
		s.Log.Info("a session with a router is up", "router", p.NeighborAddress)
	case !up && is.up:
		s.Log.Warn("a session with a router is down; it is tried again", "router", p.NeighborAddress,
			"why", is.why)
	}
	is.up = up
}

// failed notes the cause of a session that ended or did not come up.
func (s *Speaker) failed(router netip.Addr, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is := s.sessions[router]; is != nil && is.why != why {
		is.why = why
		s.Log.Warn("there is no session with a router; it is tried again", "router", router, "why", why)
	}
}

// cause explains the error of an attempt to connect.
func (s *Speaker) cause(text string) string {
	switch {
	case strings.Contains(text, "connection refused"):
		return "the machine speaks no BGP: it refuses connections to port 179"
	case strings.Contains(text, "timeout") && s.Password != "":
		return "no answer: the password differs, the router lacks this neighbour, or a firewall " +
			"drops it"
	case strings.Contains(text, "timeout"):
		return "no answer: the router wants a password, or a firewall drops the connection"
	case strings.Contains(text, "no route to host"):
		return "no machine has this address"
	case strings.Contains(text, "network is unreachable"):
		return "this host has no route to it"
	case strings.Contains(text, "cannot assign requested address"):
		return "this host lost the address from which it speaks"
	}
	return text
}

// notification is the code and the subcode of a message that ends a session (RFC 4271 §6).
type notification struct{ code, subcode int64 }

// notifications explains the usual ones.
var notifications = map[notification]string{
	{2, 2}: "the number of an autonomous system differs between this host and the router",
	{2, 3}: "another neighbour of the router has this host's identifier",
	{2, 6}: "the router refuses the hold time",
	{4, 0}: "silence for the hold time",
	{6, 1}: "the router takes fewer routes",
	{6, 2}: "the router's operator shut the session down",
	{6, 3}: "the router has this host as a neighbour no longer",
	{6, 4}: "the router's operator reset the session",
	{6, 5}: "the router does not accept this host as a neighbour",
}

// String returns the cause of an end by this message.
func (n notification) String() string {
	if text := notifications[n]; text != "" {
		return text
	}
	return fmt.Sprintf("a BGP notification with code %d and subcode %d", n.code, n.subcode)
}

// listener receives the log of the BGP server. It finds the errors of attempts to connect, which no
// event has, and passes other errors on.
type listener struct {
	speaker *Speaker
	router  netip.Addr // of the lines; invalid: none
}

// Enabled implements slog.Handler.
func (l listener) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (l listener) Handle(_ context.Context, r slog.Record) error {
	attrs := map[string]slog.Value{}
	r.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value
		return true
	})
	code, notified := attrs["Code"]
	switch {
	case !l.router.IsValid() && r.Level < slog.LevelError:
	case r.Message == "failed to connect":
		l.speaker.failed(l.router, l.speaker.cause(attrs["Error"].String()))
	case notified && strings.Contains(r.Message, "notification"):
		l.speaker.failed(l.router, notification{intOf(code), intOf(attrs["Subcode"])}.String())
	case r.Level >= slog.LevelError:
		l.speaker.Log.Error("the BGP speaker reports an error", "router", l.router, "error", r.Message,
			"cause", attrs["Error"])
	}
	return nil
}

// intOf returns the number of an attribute of any kind, or 0.
func intOf(v slog.Value) (n int64) {
	_, _ = fmt.Sscan(v.String(), &n)
	return n
}

// WithAttrs implements slog.Handler.
func (l listener) WithAttrs(all []slog.Attr) slog.Handler {
	for _, a := range all {
		if a.Key == "Key" {
			l.router, _ = netip.ParseAddr(a.Value.String())
		}
	}
	return l
}

// WithGroup implements slog.Handler.
func (l listener) WithGroup(string) slog.Handler { return l }
