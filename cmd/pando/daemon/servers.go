package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/store/etcd"
	"pando.run/pando/world"
)

// Servers returns `pando servers` with its commands.
func Servers(out *cli.Output) *cobra.Command {
	m := machine{out}
	c := &cobra.Command{
		Use: "servers", Short: "list, add and remove servers", Example: "  pando servers ls",
		Long: "List, add and remove the servers of the cluster, on a server's host, as root. Three\n" +
			"servers outlive the loss of one: each has a copy of the store, and a majority decides.",
	}
	c.AddCommand(m.listServers(), m.addServer(), m.removeServer())
	return c
}

func (m machine) listServers() *cobra.Command {
	var p place
	c := &cobra.Command{
		Use: "ls", Short: "list the servers", Example: "  pando servers ls", Args: cobra.NoArgs,
		Long: "List the servers: their addresses, whether they vote, and whether they answer. One of\n" +
			"them leads. A new server votes once it has caught up. Without a majority that answers,\n" +
			"nothing is decided, and the exit code is 8.",
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := m.lookServers(c.Context(), &p)
			if len(all) > 0 {
				err = errors.Join(m.Show(all, func(w io.Writer) { tellServers(w, all) }), err)
			}
			return err
		},
	}
	p.runFlag(c)
	return m.Flag(c)
}

// server is one line of `pando servers ls`.
type server struct {
	etcd.Peer
	Answers bool `json:"answers"`
	Leads   bool `json:"leads"`
	// Foreign means that an etcd without Pando is the store, so no server has a vote.
	Foreign bool `json:"foreign,omitempty"`
}

func tellServers(w io.Writer, all []server) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "SERVER\tADDRESS\tVOTES\tSTATE")
	for _, s := range all {
		votes, state, at := "yes", "answers", s.Address
		if s.Learner {
			votes = "not yet"
		}
		if s.Foreign {
			votes = "-"
		}
		if !s.Answers {
			state = "silent"
		}
		if s.Leads {
			state = "leads"
		}
		if at == "" {
			at = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, at, votes, state)
	}
}

// dialOwn connects to the store of the server on this host.
func (m machine) dialOwn(ctx context.Context, p *place) (*etcd.Registry, error) {
	live, err := running(*p)
	if err != nil {
		return nil, err
	}
	*p = live
	if _, serves := daemon(live, "server"); !serves {
		return nil, fmt.Errorf("%w: no server runs on this host; `pando hosts` shows the servers; "+
			"run the command there", pando.ErrUnavailable)
	}
	return etcd.Dial(ctx, "unix://"+live.store(), nil)
}

// answerWait is the time that a server has to answer.
const answerWait = time.Second

// lookServers returns the servers and asks each whether it answers. It returns the servers that are
// known also with an error: without a quorum.
func (m machine) lookServers(ctx context.Context, p *place) ([]server, error) {
	store, err := m.dialOwn(ctx, p)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	defer pando.Waiting(cli.Telling(ctx, m.Stderr), clock.Clock{}, "the store of the server on this host")()
	known, err := knownServers(ctx, *p, store)
	if err != nil && len(known) > 0 {
		err = fmt.Errorf("%w: the servers have lost their quorum, and nothing is decided: start the "+
			"silent ones with `pando up` on their hosts", err)
	}
	all, lead := asked(ctx, p.Host, known), leading(ctx, store)
	for n, s := range all {
		all[n].Foreign = p.Store.there()
		all[n].Leads = err == nil && s.Answers && s.Name == string(lead)
	}
	return all, err
}

// knownServers returns the servers: those of the embedded etcd, or the members with a server.
func knownServers(
	ctx context.Context, p place, store *etcd.Registry,
) (all []etcd.Peer, err error) {
	if !p.Store.there() {
		return store.Servers(ctx)
	}
	now, err := store.Snapshot(ctx, pando.Root+pando.Key(pando.KindMember)+"/")
	if err != nil {
		return nil, fmt.Errorf("list the servers: %s: %w", p.Store.text(), err)
	}
	for _, rec := range now.Records {
		var m pando.Member
		if world.Decode(rec, &m) != nil || !m.Server {
			continue
		}
		one := etcd.Peer{Name: string(m.Name)}
		if m.Address.IsValid() {
			one.Address = netip.AddrPortFrom(m.Address, storePort).String()
		}
		all = append(all, one)
	}
	return all, nil
}

// asked asks each server whether it answers.
func asked(ctx context.Context, own string, known []etcd.Peer) []server {
	all := make([]server, len(known))
	var asking sync.WaitGroup
	for n, k := range known {
		all[n] = server{Peer: k, Answers: k.Name == own || k.Address == ""}
		if all[n].Name == "" && k.Address == "" || len(known) == 1 {
			all[n].Name, all[n].Answers = own, true // a single server answered
			continue
		}
		if all[n].Answers {
			continue
		}
		asking.Go(func() { all[n].Answers = serverAnswers(ctx, k.Address) })
	}
	asking.Wait()
	return all
}

// serverAnswers reports whether the server at an address takes part in a handshake. The kernel of a
// stopped server accepts connections too.
func serverAnswers(ctx context.Context, at string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	// Nothing is sent or believed, and the caller only counts servers.
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	c, err := d.DialContext(ctx, "tcp", at)
	if err == nil {
		c.Close()
	}
	remote, ok := errors.AsType[*net.OpError](err)
	return err == nil || ok && remote.Op == "remote error" // such as its demand for a certificate
}

// answersAt reports whether the server of a host answers.
func answersAt(ctx context.Context, host netip.Addr) bool {
	return serverAnswers(ctx, netip.AddrPortFrom(host, storePort).String())
}

// answers returns the names of the servers that answer.
func answers(all []server) map[string]bool {
	out := map[string]bool{}
	for _, s := range all {
		out[s.Name] = s.Answers
	}
	return out
}

func (m machine) addServer() *cobra.Command {
	var p place
	var keep time.Duration
	c := &cobra.Command{
		Use: "add", Short: "print the command line that makes a host a server",
		Long: "Print the command line that makes one other host a server. It joins the cluster first,\n" +
			"if it is no member. A server has the cluster's authority: choose a host that you trust\n" +
			"as much as this one.",
		Example: "  pando servers add\n  pando servers add --for 10m", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			live, err := running(p)
			if err != nil {
				return err
			}
			if _, serves := daemon(live, "server"); !serves {
				return fmt.Errorf("%w: no server runs on this host; a new server gets the cluster's "+
					"authority from one: `pando hosts` shows the servers; run the command there",
					pando.ErrRefused)
			}
			mint := func(a *trust.Authority, until time.Time) (string, error) { return a.ServerToken(until) }
			return m.invite(live, keep, 1, " --server", mint)
		},
	}
	p.runFlag(c)
	cli.DurationVar(c.Flags(), &keep, "for", time.Hour, "how long a host can become a server by it")
	return m.Flag(c)
}

func (m machine) removeServer() *cobra.Command {
	var p place
	c := &cobra.Command{
		Use: "rm SERVER", Short: "remove a server; its host stays a member",
		Long: "Remove a server, by its name or, if it never started, by its address. Its host stays a\n" +
			"member with its instances. The command refuses to leave fewer servers alive than a\n" +
			"majority, and names the next step. It waits until the agent of the host has joined the\n" +
			"cluster by another server, and ends with 7 if it has not. Run it on the host of a server.",
		Example: "  pando servers rm host3", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			live, err := running(p)
			if err != nil {
				return err
			}
			hosts := ownAPI(live, cli.Told(m.Stderr)).Hosts
			before := joinedAt(c.Context(), hosts, args[0])
			if err := m.dismissServer(c.Context(), &p, args[0]); err != nil {
				return err
			}
			if err := awaitAgent(c.Context(), m, hosts, args[0], before, askAgain); err != nil {
				return err
			}
			is := struct {
				Server string `json:"server"`
			}{args[0]}
			return m.Show(is, func(w io.Writer) { fmt.Fprintf(w, "%s is no longer a server\n", args[0]) })
		},
	}
	p.runFlag(c)
	return m.Flag(c)
}

// listHosts returns the hosts of the cluster.
type listHosts func(context.Context) ([]pando.HostStatus, error)

// joinedAt returns when the agent of a server's host joined, or zero if it is away or the hosts cannot be listed.
func joinedAt(ctx context.Context, hosts listHosts, name string) (at time.Time) {
	all, _ := hosts(ctx) // the removal of a server must not depend on it
	for _, h := range all {
		if string(h.Name) == name && h.Server && h.State != pando.HostAway {
			at = h.Joined
		}
	}
	return at
}

// awaitAgent waits until the agent of a former server's host has joined again: it starts anew and
// reaches the cluster by another server. Before is its former join, or zero if it is away.
func awaitAgent(
	ctx context.Context, m machine, hosts listHosts, name string, before time.Time, limit time.Duration,
) error {
	if before.IsZero() {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	fmt.Fprintf(m.Stderr, "waiting: the agent of %s starts anew and joins by another server\n", name)
	for {
		all, err := hosts(within)
		for _, h := range all {
			if string(h.Name) == name && h.State != pando.HostAway && !h.Joined.Equal(before) {
				return nil
			}
		}
		if pando.Sleep(within, clock.Clock{}, askStep) == nil {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %s is no longer a server, and its agent starts anew", ctx.Err(), name)
		}
		why := ""
		if err != nil && within.Err() == nil {
			why = fmt.Sprintf(" (%v)", err)
		}
		return fmt.Errorf("%w: %s is no longer a server, and its agent has not joined again within %s%s; "+
			"`pando hosts` shows it", pando.ErrNotReady, name, limit, why)
	}
}

// dismissServer removes a server from the store, then from the record of its host.
func (m machine) dismissServer(ctx context.Context, p *place, name string) error {
	store, err := m.dialOwn(ctx, p)
	if err != nil {
		return err
	}
	defer store.Close()
	defer pando.Waiting(cli.Telling(ctx, m.Stderr), clock.Clock{}, "the store of the server on this host")()
	if p.Store.there() {
		return dismissForeign(ctx, *p, store, name)
	}
	known, err := store.Servers(ctx)
	if err != nil {
		return fmt.Errorf("remove server %s: %w; without a quorum no server goes: start the silent ones "+
			"of `pando servers ls`", name, err)
	}
	// The record first: a server that goes with its record cannot write it any more.
	before, err := noteServer(ctx, store, pando.HostName(name), false)
	if err != nil {
		return err
	}
	err = store.RemoveServer(ctx, name, answers(asked(ctx, p.Host, known)))
	if err != nil && before {
		_, undo := noteServer(ctx, store, pando.HostName(name), true)
		return errors.Join(err, undo)
	}
	return err
}

// dismissForeign takes a server on a foreign etcd out, by the record of its host. The server ends
// itself when it sees that.
func dismissForeign(
	ctx context.Context, p place, store *etcd.Registry, name string,
) error {
	known, err := knownServers(ctx, p, store)
	if err != nil {
		return err
	}
	others := 0
	for _, s := range asked(ctx, p.Host, known) {
		if s.Name != name && s.Answers {
			others++
		}
	}
	switch {
	case !slices.ContainsFunc(known, func(k etcd.Peer) bool { return k.Name == name }):
		return fmt.Errorf("remove server %s: %w; `pando servers ls` lists those there are", name,
			pando.ErrNotFound)
	case others == 0:
		return fmt.Errorf("remove server %s: %w: no other server answers, and nothing would be decided; "+
			"start one with `pando up` first", name, pando.ErrRefused)
	}
	_, err = noteServer(ctx, store, pando.HostName(name), false)
	return err
}

// noteServer notes in the record of a member whether it has a server. It returns the former note.
func noteServer(
	ctx context.Context, r *etcd.Registry, h pando.HostName, next bool,
) (before bool, err error) {
	now, err := r.Snapshot(ctx, pando.MemberKey(h))
	if err != nil {
		return false, err
	}
	for _, rec := range now.Records {
		if rec.Key != pando.MemberKey(h) {
			continue
		}
		var m pando.Member
		if err := world.Decode(rec, &m); err != nil {
			return false, err
		}
		if before = m.Server; before == next {
			return before, nil
		}
		m.Server = next
		_, err = r.Commit(ctx, pando.Txn{
			If: []pando.Condition{{Key: rec.Key, Modified: rec.Modified}}, Put: []pando.Stored{m},
		})
		return before, err
	}
	return false, nil
}

// awaitVote waits until the server of this host votes, or ctx ends.
func (m machine) awaitVote(ctx context.Context, p place) error {
	store, err := etcd.Dial(ctx, "unix://"+p.store(), nil)
	if err != nil {
		return err
	}
	defer store.Close()
	for {
		all, err := store.Servers(ctx)
		for _, s := range all {
			if s.Name == p.Host && !s.Learner && err == nil {
				return nil
			}
		}
		if pando.Sleep(ctx, clock.Clock{}, 100*time.Millisecond) != nil {
			return fmt.Errorf("%w: the server runs and has no vote yet: it catches up, and "+
				"`pando servers ls` shows when it votes", pando.ErrNotReady)
		}
	}
}
