package daemon

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd"
	"pando.run/pando/world"
)

// several is the file of each of several servers. A single server has none.
type several struct {
	// Join has the address of every server by name, for the first start of this one.
	Join map[string]string `json:"join,omitempty"`
	// Left means that the others took this server out, and that leaveServers has begun.
	Left bool `json:"left,omitempty"`
}

func (f folders) severalFile() string { return filepath.Join(f.Data, "servers.json") }

// readSeveral returns nil for a host without a server, and for a single server.
func (f folders) readSeveral() (*several, error) {
	text, err := os.ReadFile(f.severalFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	s := &several{}
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the servers of the cluster in %s: %w", f.severalFile(), err)
	}
	return s, nil
}

func (f folders) writeSeveral(s several) error {
	text, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(f.severalFile()+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(f.severalFile()+".new", f.severalFile())
	}
	if err != nil {
		return fmt.Errorf("note the servers of the cluster: %w", err)
	}
	return nil
}

// isServer reports whether this host has a server. A host that joined has one once it became one.
func (p place) isServer() (bool, error) {
	m, err := trust.LoadMembership(p.trust())
	if err != nil || m == nil {
		return err == nil, err
	}
	s, err := p.readSeveral()
	if err != nil || s != nil {
		return err == nil && !s.Left, err
	}
	return p.hasStore()
}

// mayServe refuses a server on a member that has none.
func (p place) mayServe() error {
	serves, err := p.isServer()
	if err == nil && !serves {
		err = fmt.Errorf("%w: host %s is a member without a server; `pando servers add` on another "+
			"server begins one", pando.ErrRefused, p.Host)
	}
	return err
}

// peers returns the configuration of a store that several servers share, or nil for a single one.
func (p place) peers(i *trust.Identity) (*etcd.Peers, error) {
	s, err := p.readSeveral()
	if err != nil || s == nil || p.Store.there() {
		return nil, err
	}
	if p.Listen == "" {
		return nil, fmt.Errorf("%w: one of several servers needs an address for the others: "+
			"`pando up --listen ADDRESS`", pando.ErrInvalid)
	}
	files, err := i.WriteFiles(p.trust())
	if err != nil {
		return nil, err
	}
	return &etcd.Peers{
		Listen: p.open(peerPort), TLS: recognizing(i.Servers()), Certificate: files.Certificate,
		Authority: files.Authority, ServerName: trust.ServerName, Join: s.Join, Clock: clock.Clock{},
		Bound: bounded,
	}, nil
}

// errAgain ends a daemon that starts anew with other settings, in the same process.
var errAgain = errors.New("the daemon starts anew")

// anew replaces this process by a new one of the same command line, if err asks for that. systemd
// and the warden see no end.
func anew(err error) error {
	if !errors.Is(err, errAgain) {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the pando binary: %w", err)
	}
	return fmt.Errorf("start the daemon anew: %w", syscall.Exec(self, os.Args, os.Environ()))
}

// promotion is the server's side of a request to be a server too.
type promotion struct {
	admission admission
	store     *etcd.Registry
	again     chan struct{} // buffered; asks this server to start as one of several
}

// run ends the server when it has to start as one of several.
func (o promotion) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-o.again:
		// The answer leaves first. A lost answer does no harm: the asker tries again.
		_ = pando.Sleep(ctx, clock.Clock{}, answerTime)
		return errAgain
	}
}

const (
	answerTime   = 200 * time.Millisecond
	clockSkewMax = 5 * time.Minute // between two servers
)

// hand makes a member a server. The member may ask again, because its answer may be lost.
func (o promotion) hand(
	ctx context.Context, s peer.Serving, known *x509.Certificate,
) (out peer.Handover, err error) {
	h, err := trust.HostOf(known)
	if err != nil {
		return out, err
	}
	m, err := readMember(ctx, o.admission.control.Registry, h)
	if err == nil {
		err = m.Admits(known.RawSubjectPublicKeyInfo)
	}
	if err != nil {
		return out, err
	}
	if !m.Server {
		if err := o.admission.authority.CheckServer(s.Token, clock.Clock{}.Now()); err != nil {
			return out, err
		}
	}
	if err := fits(s, m, clock.Clock{}.Now()); err != nil {
		return out, err
	}
	if err := o.sameStore(s); err != nil {
		return out, err
	}
	if is, err := o.admission.readSeveral(); err != nil || is == nil && !s.Foreign {
		return out, errors.Join(err, o.begin())
	}
	if !m.Server {
		server := m
		server.Server = true
		use, err := o.admission.authority.UseServer(s.Token, clock.Clock{}.Now())
		if err != nil {
			return out, err
		}
		if _, err := o.admission.control.Admit(ctx, server, false, &use); err != nil {
			return out, err
		}
	}
	if !s.Foreign {
		if out.Servers, err = o.store.AddServer(ctx, string(h), s.Address); err != nil {
			return out, err
		}
	}
	key, err := trust.OpenSealingKey(o.admission.trust())
	if err != nil {
		return out, err
	}
	out.Sealing = key
	out.Authority, err = o.admission.authority.Seal(key)
	return out, err
}

// sameStore refuses a new server that would use another store than this one.
func (o promotion) sameStore(s peer.Serving) error {
	switch {
	case s.Foreign == o.admission.Store.there():
		return nil
	case s.Foreign:
		return fmt.Errorf("%w: the servers of this cluster have the store in themselves; leave out "+
			"--store", pando.ErrInvalid)
	}
	return fmt.Errorf("%w: the store of this cluster is %s; give --store with its endpoints, and "+
		"--store-ca, --store-cert and --store-key with files on that host", pando.ErrInvalid,
		o.admission.Store.text())
}

// begin makes a single server one of several, by a start anew.
func (o promotion) begin() error {
	if err := o.admission.writeSeveral(several{}); err != nil {
		return err
	}
	select {
	case o.again <- struct{}{}:
	default:
	}
	return fmt.Errorf("%w: the first server opens its door for others; try again",
		pando.ErrUnavailable)
}

// fits returns why a member cannot be a server, or nil.
func fits(s peer.Serving, m pando.Member, now time.Time) error {
	off := s.Now.Sub(now).Round(time.Second)
	at, err := netip.ParseAddrPort(s.Address)
	switch {
	case s.Host != m.Name:
		return fmt.Errorf("%w: the certificate is that of host %s, not of %s",
			pando.ErrForbidden, m.Name, s.Host)
	case off.Abs() > clockSkewMax:
		return fmt.Errorf("%w: the clock of host %s differs from this server's by %s; set it, then try "+
			"again", pando.ErrInvalid, s.Host, off)
	case s.Version != cli.Version || s.Layout != world.CurrentLayout():
		return fmt.Errorf("%w: host %s runs pando %s (layout %d) and this server %s (layout %d); "+
			"install the same pando on both, run `pando daemons restart`, then try again", pando.ErrInvalid, s.Host,
			s.Version, s.Layout, cli.Version, world.CurrentLayout())
	case err != nil || at.Addr().Unmap() != m.Address && at.Addr().Unmap() != m.Address6:
		return fmt.Errorf("%w: host %s is a member at %s and would serve at %s; give it --listen %[3]s",
			pando.ErrInvalid, s.Host, m.Address, s.Address)
	}
	return nil
}

// becomeServer makes this member a server, as the flags ask, before its daemons start. A running
// agent ends first: it answers the operators of a host without a server.
func (m machine) becomeServer(ctx context.Context, p place, member *trust.Membership) error {
	if is, err := p.readSeveral(); err != nil || is != nil {
		return err
	}
	if err := askServer(ctx, p, member); err != nil {
		return err
	}
	if err := m.endWarden(ctx, p); err != nil {
		return err
	}
	return m.stopDaemon(ctx, p, "agent", asking, false)
}

// askServer asks to be a server. It tries again while the servers are not ready for that, until ctx
// ends.
func askServer(ctx context.Context, p place, m *trust.Membership) error {
	if m == nil {
		return cli.Usagef("--server needs --join ADDRESS --token TOKEN: `pando servers add` on a " +
			"server's host prints them; the first server needs no flag")
	}
	if !p.Store.there() {
		if err := p.hasRoom(); err != nil {
			return err
		}
	}
	ask := peer.Serving{
		Token: p.Token, Host: m.Host, Address: p.open(peerPort), Layout: world.CurrentLayout(),
		Version: cli.Version, Foreign: p.Store.there(),
	}
	for {
		ask.Now = clock.Clock{}.Now()
		got, err := peer.Serve(ctx, m.Server, m.Identity.ToServer(), ask)
		if err == nil {
			return acceptServer(p, m, got)
		}
		if !errors.Is(err, pando.ErrUnavailable) && !errors.Is(err, pando.ErrConflict) {
			return err
		}
		if pando.Sleep(ctx, clock.Clock{}, serveAgain) != nil {
			return fmt.Errorf("%w; run `pando up --server` again", err)
		}
	}
}

// serveAgain is the time between two requests to be a server.
const serveAgain = 300 * time.Millisecond

// acceptServer stores the keys and the addresses of a new server. The file of several servers comes
// last: with it, this host has a server.
func acceptServer(p place, m *trust.Membership, got peer.Handover) error {
	key := trust.SealingKey(got.Sealing)
	if err := key.Unseal(p.trust(), got.Authority, m.Identity); err != nil {
		return err
	}
	if err := key.Save(p.trust()); err != nil {
		return err
	}
	return p.writeSeveral(several{Join: got.Servers})
}

// haveLeft ends the work of leaveServers that a crash interrupted.
func haveLeft(p place) error {
	if s, err := p.readSeveral(); err != nil || s == nil || !s.Left {
		return err
	}
	return leaveServers(p)
}

// leaveServers forgets that this host has a server, after the others have removed it. Its store
// stays in the data folder, renamed.
func leaveServers(p place) error {
	// A crash on the way must not begin a new store: this host counts as left from here on.
	if err := errors.Join(becomeMember(p), p.writeSeveral(several{Left: true})); err != nil {
		return err
	}
	store := filepath.Join(p.Data, "store")
	aside := store + ".removed-" + clock.Clock{}.Now().UTC().Format("20060102T150405")
	err := os.Rename(store, aside)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	for _, name := range []string{"authority.pem", "sealing.key", "server.pem", "tokens.json"} {
		if m, _ := trust.LoadMembership(p.trust()); m == nil {
			break // its agent needs the authority
		}
		if gone := os.Remove(filepath.Join(p.trust(), name)); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	if gone := os.Remove(p.storeNote()); !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	if gone := os.Remove(p.severalFile()); !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	if err != nil {
		return fmt.Errorf("forget the server of this host: %w", err)
	}
	return nil
}
