package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd"
)

// known lists the cluster's servers for the agent of one host, so that it outlives the loss of any
// of them. The list is on the disk: an agent may start while the server that it joined is lost.
type known struct {
	path string // of the list
	own  pando.HostName
	sock string // of the own server's store, if this host has a server
	log  *slog.Logger
	use  func(endpoints []string) error // of the registry; nil before it is there

	mu      sync.Mutex
	serves  bool         // this host has a server
	joined  []netip.Addr // of the server that admitted this host, if any; the last choice
	servers []knownServer
	last    netip.Addr // the server that answered the last command
	demoted chan struct{}
}

// knownServer is one server of the list.
type knownServer struct {
	Name    pando.HostName `json:"name"`
	Address netip.Addr     `json:"address"`
}

func (f folders) knownFile() string { return filepath.Join(f.Data, "known-servers.json") }

// openKnown reads the list. A list that cannot be read costs nothing but the choice: the records of
// the store write it again.
func openKnown(p place, m *trust.Membership, serves bool, log *slog.Logger) *known {
	k := &known{path: p.knownFile(), own: pando.HostName(p.Host), sock: p.store(), log: log,
		serves: serves, demoted: make(chan struct{})}
	if m != nil {
		if at, err := netip.ParseAddrPort(m.Server); err == nil {
			k.joined = []netip.Addr{at.Addr()}
		}
	}
	text, err := os.ReadFile(k.path)
	if err == nil {
		err = json.Unmarshal(text, &k.servers)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("cannot read the list of servers; the store will give it again", "file", k.path,
			"error", err)
		k.servers = nil
	}
	return k
}

// learn takes the servers from the records of the members. Records without a server are those of a
// store that is being restored, and change nothing.
func (k *known) learn(members map[pando.HostName]pando.Member) {
	var all []knownServer
	for _, m := range members {
		if m.Server && m.Address.IsValid() {
			all = append(all, knownServer{m.Name, m.Address})
		}
	}
	slices.SortFunc(all, func(a, b knownServer) int { return cmp.Compare(a.Name, b.Name) })
	k.mu.Lock()
	defer k.mu.Unlock()
	if own, is := members[k.own]; k.serves && is && !own.Server && len(all) > 0 {
		k.serves = false
		close(k.demoted) // its server was taken out
	}
	if len(all) == 0 || slices.Equal(all, k.servers) {
		return
	}
	k.servers = all
	if err := k.save(); err != nil {
		k.log.Warn("cannot store the list of servers", "error", err) // it is in memory
	}
	if k.use == nil {
		return
	}
	if err := k.use(k.endpoints()); err != nil {
		k.log.Warn("cannot use the servers of the cluster", "error", err)
	}
}

func (k *known) save() error {
	text, err := json.Marshal(k.servers)
	if err == nil {
		err = os.WriteFile(k.path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(k.path+".new", k.path)
	}
	return err
}

// addresses returns the servers of other hosts, each host's list in an order of its own: hosts
// spread over the servers. The caller holds the lock.
func (k *known) addresses() []netip.Addr {
	var out []netip.Addr
	for _, s := range k.servers {
		if s.Name != k.own {
			out = append(out, s.Address)
		}
	}
	if n := len(out); n > 1 {
		first := int(crc32.ChecksumIEEE([]byte(k.own)) % uint32(n))
		out = append(out[first:len(out):len(out)], out[:first]...)
	}
	for _, a := range k.joined {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// endpoints returns the endpoints of the store, the own server's first. The caller holds the lock.
func (k *known) endpoints() []string {
	var out []string
	own := func(s knownServer) bool { return s.Name == k.own }
	if k.serves || slices.ContainsFunc(k.servers, own) {
		out = append(out, "unix://"+k.sock)
	}
	for _, a := range k.addresses() {
		out = append(out, storeAt(a))
	}
	return out
}

// store returns the endpoint of the store on the server of another host.
func (k *known) store(h pando.HostName) (endpoint string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := slices.IndexFunc(k.servers, func(s knownServer) bool { return s.Name == h })
	if n < 0 {
		return "", false
	}
	return storeAt(k.servers[n].Address), true
}

func storeAt(a netip.Addr) string {
	return "https://" + netip.AddrPortFrom(a, storePort).String()
}

// dial connects to the servers of the store.
func (k *known) dial(
	ctx context.Context, first string, identity *tls.Config, from ...netip.Addr,
) (*etcd.Registry, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.endpoints()
	if len(all) == 0 {
		all = []string{first}
	}
	r, err := etcd.Dial(ctx, all[0], identity, from...)
	if err != nil {
		return nil, err
	}
	k.use = func(endpoints []string) error { return r.Use(clock.Clock{}, endpoints) }
	return r, k.use(all)
}

// serverDialMax is the time of one server to accept a connection and show its certificate.
const serverDialMax = 1500 * time.Millisecond

// reach connects to the door of the first server that answers, beginning with the last one that
// did.
func (k *known) reach(ctx context.Context, identity *tls.Config) (net.Conn, error) {
	k.mu.Lock()
	all := k.addresses()
	if n := slices.Index(all, k.last); n > 0 {
		all[0], all[n] = all[n], all[0]
	}
	k.mu.Unlock()
	var errs []error
	for _, a := range all {
		c, err := reachOne(ctx, netip.AddrPortFrom(a, joinPort).String(), identity)
		if err == nil {
			k.mu.Lock()
			k.last = a
			k.mu.Unlock()
			return c, nil
		}
		errs = append(errs, err)
	}
	if errs == nil {
		return nil, fmt.Errorf("%w: no server of the cluster is known", pando.ErrUnavailable)
	}
	return nil, errors.Join(errs...)
}

func reachOne(ctx context.Context, at string, identity *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, serverDialMax)
	defer cancel()
	return (&tls.Dialer{Config: identity}).DialContext(ctx, "tcp", at)
}

// doors returns the addresses at which servers admit hosts, the given one first.
func (k *known) doors(first string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := []string{first}
	for _, a := range k.addresses() {
		if at := net.JoinHostPort(a.String(), strconv.Itoa(joinPort)); at != first {
			out = append(out, at)
		}
	}
	return out
}
