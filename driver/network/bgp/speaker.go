// Package bgp announces VIPs to routers by BGP, through a GoBGP speaker in this process.
//
// The speaker opens the sessions and accepts none, so it needs no port. It takes no route from a
// router and never changes the routes of its host. After the end of the process a router keeps the
// routes for RestartMax: the kernel steers on. It never chooses the VIPs.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"pando.run/pando"
)

// The times of a speaker.
const (
	// RestartMax is how long a router keeps the routes of an ended agent.
	RestartMax = time.Minute
	// HoldMin is the shortest hold time that BGP allows.
	HoldMin    = 3 * time.Second
	retryEvery = 5 * time.Second // a kernel needs 3 s to find that no machine has an address
	stopMax    = 2 * time.Second // for the last messages
)

// hops is the TTL of packets to a router. It passes a router that wants only neighbours, and one
// that is some networks away.
const hops = 255

// Config describes a speaker.
type Config struct {
	AS       uint32
	Routers  []pando.Router
	Password string        // of the sessions (TCP-MD5); "": none
	Hold     time.Duration // a router withdraws a silent host after this time
	BFD      time.Duration // between two packets of BFD; three lost ones end the session; 0: none
	ID       netip.Addr    // IPv4, of this host only
	// Next4 and Next6 are the addresses of this host. VIPs of a family without one are not announced.
	Next4, Next6 netip.Addr
	Port         uint16 // of the routers; 0: 179
	Clock        pando.Clock
	Log          *slog.Logger
}

// Speaker is the BGP speaker of one host. Its methods may be called from any goroutine.
type Speaker struct {
	Config
	server *server.BgpServer
	ended  chan struct{}

	mu       sync.Mutex
	sessions map[netip.Addr]*session
}

var _ pando.Routers = (*Speaker)(nil)

// New returns a speaker without sessions. Serve opens them and ends the speaker.
func New(c Config) (*Speaker, error) {
	s := &Speaker{Config: c, ended: make(chan struct{}), sessions: map[netip.Addr]*session{}}
	for _, r := range c.Routers {
		s.sessions[r.Address] = &session{}
	}
	level := &slog.LevelVar{}
	level.Set(slog.LevelDebug) // failed attempts to connect have this level
	s.server = server.NewBgpServer(server.LoggerOption(slog.New(listener{speaker: s}), level))
	go func() {
		defer close(s.ended)
		s.server.Serve()
	}()
	err := s.server.StartBgp(context.Background(), &api.StartBgpRequest{Global: &api.Global{
		Asn: c.AS, RouterId: c.ID.String(), ListenPort: -1,
		GracefulRestart: s.restart(),
	}})
	if err == nil {
		err = s.deafen(context.Background())
	}
	if err != nil {
		return nil, fmt.Errorf("start the BGP speaker: %w", err)
	}
	return s, nil
}

// deafen rejects every route of a router. A host would otherwise pass the routes of one router on
// to another.
func (s *Speaker) deafen(ctx context.Context) error {
	const name = "routers"
	all := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: name}
	for _, r := range s.Routers {
		all.List = append(all.List, netip.PrefixFrom(r.Address, r.Address.BitLen()).String())
	}
	policy := &api.Policy{Name: name, Statements: []*api.Statement{{
		Name: name,
		Conditions: &api.Conditions{
			NeighborSet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: name},
		},
		Actions: &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT},
	}}}
	err := s.server.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: all})
	if err == nil {
		err = s.server.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy})
	}
	if err != nil {
		return err
	}
	return s.server.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{
		Assignment: &api.PolicyAssignment{
			Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_IMPORT,
			Policies:      []*api.Policy{policy},
			DefaultAction: api.RouteAction_ROUTE_ACTION_ACCEPT,
		},
	})
}

// restart returns the word for a router that the routes outlive a restart of the agent.
func (s *Speaker) restart() *api.GracefulRestart {
	return &api.GracefulRestart{
		Enabled: true, RestartTime: uint32(RestartMax / time.Second), DeferralTime: 1,
	}
}

// Serve implements pando.Routers.
func (s *Speaker) Serve(ctx context.Context, withdraws func() bool) error {
	err := s.open(ctx)
	if err == nil {
		<-ctx.Done()
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopMax)
	defer cancel()
	return errors.Join(err, s.close(stop, withdraws()))
}

// open begins the sessions. Each is tried again until the speaker ends.
func (s *Speaker) open(ctx context.Context) error {
	err := s.server.WatchEvent(ctx, server.WatchEventMessageCallbacks{OnPeerUpdate: s.note},
		server.WatchPeer())
	for _, r := range s.Routers {
		if err != nil || ctx.Err() != nil {
			break
		}
		if err = s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: s.peer(r)}); err != nil {
			err = fmt.Errorf("open a session with the router %s: %w", r, err)
		}
	}
	return err
}

// peer returns the settings of a session.
func (s *Speaker) peer(r pando.Router) *api.Peer {
	own := s.Next4
	if r.Address.Is6() {
		own = s.Next6
	}
	p := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: r.Address.String(), PeerAsn: r.AS, AuthPassword: s.Password,
		},
		EbgpMultihop: &api.EbgpMultihop{Enabled: true, MultihopTtl: hops},
		Timers: &api.Timers{Config: &api.TimersConfig{
			ConnectRetry: uint64(retryEvery / time.Second), IdleHoldTimeAfterReset: 1,
			HoldTime: uint64(s.Hold / time.Second), KeepaliveInterval: uint64(s.Hold / time.Second / 3),
		}},
		Transport:       &api.Transport{RemotePort: uint32(s.Port)},
		GracefulRestart: s.restart(),
	}
	p.GracefulRestart.LocalRestarting = true // a former agent's routes stay in force meanwhile
	if own.IsValid() {
		p.Transport.LocalAddress = own.String()
	}
	if s.BFD > 0 {
		each := uint32(s.BFD / time.Microsecond)
		p.Bfd = &api.BfdPeerConfig{Enabled: true, DetectionMultiplier: 3,
			DesiredMinimumTxInterval: each, RequiredMinimumReceive: each}
	}
	for _, f := range s.families() {
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{
			Config: &api.AfiSafiConfig{
				Family: apiutil.ToApiFamily(f.Afi(), f.Safi()), Enabled: true,
			},
			MpGracefulRestart: &api.MpGracefulRestart{
				Config: &api.MpGracefulRestartConfig{Enabled: true},
			},
		})
	}
	return p
}

// families returns the families of VIPs that this host announces.
func (s *Speaker) families() (all []bgp.Family) {
	if s.Next4.IsValid() {
		all = append(all, bgp.RF_IPv4_UC)
	}
	if s.Next6.IsValid() {
		all = append(all, bgp.RF_IPv6_UC)
	}
	return all
}

// close ends the speaker. Routers keep the routes for a while unless they are withdrawn.
func (s *Speaker) close(ctx context.Context, withdraws bool) error {
	err := s.server.StopBgp(ctx, &api.StopBgpRequest{AllowGracefulRestart: !withdraws})
	if err != nil {
		return fmt.Errorf("end the BGP speaker: %w", err)
	}
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end the BGP speaker: %w", ctx.Err())
	}
}

// Announce implements pando.Routers.
func (s *Speaker) Announce(vips []netip.Addr) error { return s.change(vips, s.add) }

// Withdraw implements pando.Routers.
func (s *Speaker) Withdraw(vips []netip.Addr) error { return s.change(vips, s.remove) }

func (s *Speaker) add(p *apiutil.Path) error {
	_, err := s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{p}})
	return err
}

func (s *Speaker) remove(p *apiutil.Path) error {
	return s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{p}})
}

func (s *Speaker) change(vips []netip.Addr, do func(*apiutil.Path) error) error {
	for _, vip := range vips {
		p, err := s.path(vip)
		if err == nil && p != nil {
			err = do(p)
		}
		if err != nil {
			return fmt.Errorf("change the route to %s: %w", vip, err)
		}
	}
	return nil
}

// path returns the route to a VIP by this host, or nil if the host has no address of that family.
func (s *Speaker) path(vip netip.Addr) (*apiutil.Path, error) {
	nlri, err := bgp.NewIPAddrPrefix(netip.PrefixFrom(vip, vip.BitLen()))
	if err != nil {
		return nil, err
	}
	origin := bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)
	switch {
	case vip.Is4() && s.Next4.IsValid():
		next, err := bgp.NewPathAttributeNextHop(s.Next4)
		return &apiutil.Path{Family: bgp.RF_IPv4_UC, Nlri: nlri,
			Attrs: []bgp.PathAttributeInterface{origin, next}}, err
	case vip.Is6() && s.Next6.IsValid():
		next, err := bgp.NewPathAttributeMpReachNLRI(bgp.RF_IPv6_UC,
			[]bgp.PathNLRI{{NLRI: nlri}}, s.Next6)
		return &apiutil.Path{Family: bgp.RF_IPv6_UC, Nlri: nlri,
			Attrs: []bgp.PathAttributeInterface{origin, next}}, err
	}
	return nil, nil
}
