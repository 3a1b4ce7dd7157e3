package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pando.run/pando"
)

// Peer is one server of the store.
type Peer struct {
	Name    string `json:"name"`    // "" before its first start
	Address string `json:"address"` // for the other servers; "": a single server
	Learner bool   `json:"learner"` // it catches up and has no vote yet
	id      uint64
}

// Servers returns the servers of the store, by name. If they have no quorum, it returns the list of
// its own copy with ErrUnavailable.
func (r *Registry) Servers(ctx context.Context) ([]Peer, error) {
	call, cancel := bounded(ctx)
	defer cancel()
	got, err := r.client.MemberList(call)
	if err != nil {
		err = fmt.Errorf("list the servers: %w", sentinel(call, err))
		again, cancel := bounded(context.WithoutCancel(ctx))
		defer cancel()
		var local error
		if got, local = r.client.MemberList(again, clientv3.WithSerializable()); local != nil {
			return nil, err
		}
	}
	var all []Peer
	for _, m := range got.Members {
		p := Peer{Name: m.Name, Learner: m.IsLearner, id: m.ID}
		for _, text := range m.PeerURLs {
			if u, err := url.Parse(text); err == nil && u.Scheme == "https" {
				p.Address = u.Host
			}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Peer) int {
		return strings.Compare(a.Name+a.Address, b.Name+b.Address)
	})
	return all, err
}

// AddServer lets a new server join the store, without a vote at first. It returns every server's
// address by name, for the Join of the new one. A repetition changes nothing.
func (r *Registry) AddServer(
	ctx context.Context, name, address string,
) (map[string]string, error) {
	all, err := r.Servers(ctx)
	if err != nil {
		return nil, err
	}
	join := map[string]string{name: address}
	there := false
	for _, p := range all {
		switch {
		case p.Address == address && (p.Name == "" || p.Name == name):
			there = true
		case p.Name == name, p.Address == address:
			return nil, fmt.Errorf("%w: server %s is at %s: if it is gone for good, "+
				"`pando servers rm %[2]s`, then try again", pando.ErrExists, p.Name, p.Address)
		case p.Name == "":
			return nil, fmt.Errorf("%w: the server at %s has not started yet: start it, or "+
				"`pando servers rm %[2]s`", pando.ErrConflict, p.Address)
		default:
			join[p.Name] = p.Address
		}
	}
	if there {
		return join, nil
	}
	call, cancel := bounded(ctx)
	defer cancel()
	if _, err := r.client.MemberAddAsLearner(call, []string{peerURL(address)}); err != nil {
		return nil, fmt.Errorf("add server %s: %w", name, membership(call, err))
	}
	return join, nil
}

// RemoveServer takes a server out of the store. answers has the names of the servers that answer
// now. It refuses to break the quorum.
func (r *Registry) RemoveServer(ctx context.Context, name string, answers map[string]bool) error {
	all, err := r.Servers(ctx)
	if err != nil {
		return err
	}
	if err := MayGo(all, name, answers); err != nil {
		return fmt.Errorf("remove server %s: %w", name, err)
	}
	n := slices.IndexFunc(all, func(p Peer) bool { return p.is(name) })
	call, cancel := bounded(ctx)
	defer cancel()
	if _, err := r.client.MemberRemove(call, all[n].id); err != nil {
		return fmt.Errorf("remove server %s: %w", name, membership(call, err))
	}
	return nil
}

// is reports whether a name is that of this server. A server that has not started has its address.
func (p Peer) is(name string) bool { return p.Name == name || p.Name == "" && p.Address == name }

func (p Peer) text() string {
	if p.Name == "" {
		return p.Address
	}
	return p.Name
}

// MayGo returns why a server may not leave the store, or nil: the others must have a quorum of
// themselves. answers has the names of the servers that answer.
func MayGo(all []Peer, name string, answers map[string]bool) error {
	n := slices.IndexFunc(all, func(p Peer) bool { return p.is(name) })
	if n < 0 {
		return fmt.Errorf("%w; `pando servers ls` lists those there are", pando.ErrNotFound)
	}
	if len(all) == 1 {
		return fmt.Errorf("%w: it is the only server; `pando down --purge` there deletes the cluster",
			pando.ErrRefused)
	}
	if all[n].Learner {
		return nil
	}
	voters, alive := 0, 0
	var silent []string
	for i, p := range all {
		if p.Learner || i == n {
			continue
		}
		voters++
		if answers[p.Name] {
			alive++
		} else {
			silent = append(silent, p.text())
		}
	}
	if alive > voters/2 && voters > 0 {
		return nil
	}
	if voters == 0 {
		return fmt.Errorf("%w: the other servers have no vote yet; wait until `pando servers ls` shows "+
			"one that votes", pando.ErrRefused)
	}
	return fmt.Errorf("%w: %d of the %d other servers answer, and they need %d: start %s with "+
		"`pando up` there, or `pando servers rm %s` first if it is gone for good", pando.ErrRefused,
		alive, voters, voters/2+1, strings.Join(silent, " and "), silent[0])
}

// membership names the errors of a change of the servers.
func membership(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrMemberNotEnoughStarted), errors.Is(err, rpctypes.ErrUnhealthy):
		// etcd requires 5 s of answers of every other server.
		return fmt.Errorf("%w: too few servers have answered for 5 s: start those of `pando servers ls` "+
			"that are silent, then try again", pando.ErrUnavailable)
	case errors.Is(err, rpctypes.ErrTooManyLearners):
		return fmt.Errorf("%w: another new server has no vote yet; wait until `pando servers ls` shows "+
			"that it votes", pando.ErrConflict)
	case errors.Is(err, rpctypes.ErrPeerURLExist), errors.Is(err, rpctypes.ErrMemberExist):
		return fmt.Errorf("%w: a server has this address; `pando servers ls` shows it", pando.ErrExists)
	}
	return sentinel(ctx, err)
}
