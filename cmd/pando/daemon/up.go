package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/driver/network/features"
)

// upWait is how long `pando up` waits for live daemons to answer. A busy machine may need most of
// it.
const upWait = time.Minute

// machine makes the commands that start, stop and join the daemons of this machine.
type machine struct{ *cli.Output }

// Up returns `pando up`.
func Up(out *cli.Output) *cobra.Command {
	m := machine{out}
	var p place
	guarded := true
	c := &cobra.Command{
		Use: "up", Short: "start Pando on this machine: the server and the agent",
		Long: "Start the server and the agent, each as a process, unless they run. With --join, start\n" +
			"only an agent, as a host of the cluster of that server; `pando token` on the server's\n" +
			"host prints the token. A host that joined stays a member, so a later `pando up` needs\n" +
			"no flags: the data folder keeps them. Give a flag again to change it. With --server, the\n" +
			"host also becomes one of several servers; `pando servers add` prints that command line.\n\n" +
			"A warden restarts a daemon that ends. After `pando install`, systemd does that, and it\n" +
			"starts the daemons at every boot.",
		Example: "  pando up\n  pando up --uplink eth0 --address 192.0.2.10\n" +
			"  pando up --join 192.0.2.10 --token pando1…",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			asked, err := p.completeAgain(c.Flags())
			if err != nil {
				return err
			}
			if err := errors.Join(p.settled(asked), ignored(p, asked)); err != nil {
				return err
			}
			return m.up(c.Context(), p, guarded)
		},
	}
	p.flags(c)
	p.joinFlags(c)
	c.Flags().BoolVar(&p.Serves, "server", false, "with --join: also make this host a server")
	m.unitFlags(c, &p)
	c.Flags().BoolVar(&guarded, "warden", true, "restart a daemon that ends")
	return out.Flag(c)
}

func (m machine) up(ctx context.Context, p place, guarded bool) error {
	ctx, cancel := context.WithTimeout(ctx, upWait)
	defer cancel()
	if m, err := trust.LoadMembership(p.trust()); err != nil {
		return err
	} else if _, serves := daemon(p, "server"); serves && p.Join != "" && m == nil {
		return p.ownCluster()
	}
	if err := elsewhere(p); err != nil {
		return err
	}
	if err := collides(p); err != nil {
		return err
	}
	if err := prepareStore(ctx, p); err != nil {
		return err
	}
	ctx = cli.Telling(ctx, m.Stderr)
	if err := enroll(ctx, m, p); err != nil {
		return err
	}
	roles, err := p.roles()
	if err != nil {
		return err
	}
	var since time.Time
	began := map[string]int64{} // length of each log before the start
	for _, role := range roles {
		if st, err := os.Stat(daemonLog(p, role)); err == nil {
			began[role] = st.Size()
		}
		if _, alive := daemon(p, role); alive {
			continue
		}
		if role == "agent" {
			since = clock.Clock{}.Now() // an older record belongs to a former agent
		}
		if err := p.begin(ctx, role); err != nil {
			return err
		}
	}
	hosts, err := answering(ctx, p, roles, since, began, cli.Told(m.Stderr))
	if err == nil { // the flags of a start that failed may be its cause
		err = p.writeFlags(p.keep)
	}
	if err == nil && guarded && len(p.installed(roles...)) == 0 {
		err = startDaemon(p, wardenRole)
	}
	if err == nil && p.Serves && !p.Store.there() {
		voted := pando.Waiting(ctx, clock.Clock{}, "the vote of this server: it catches up")
		err = m.awaitVote(ctx, p)
		voted()
	}
	if err != nil {
		return err
	}
	is := struct {
		Host  string             `json:"host"`
		API   string             `json:"api"`
		Hosts []pando.HostStatus `json:"hosts"`
	}{p.Host, p.api(), hosts}
	return m.Show(is, func(w io.Writer) {
		fmt.Fprintf(w, "pando is up on %s (api %s). Next: pando deploy SPEC.yaml\n", p.Host, p.api())
	})
}

// enroll makes this host a member of the cluster to join, and a server there if asked.
func enroll(ctx context.Context, m machine, p place) error {
	defer pando.Waiting(ctx, clock.Clock{}, "the servers of the cluster")()
	member, err := joinFresh(ctx, p)
	if err == nil && p.Serves {
		err = m.becomeServer(ctx, p, member)
	}
	return err
}

// prepareStore returns why this host cannot have its store, or nil. A host that was taken out of
// the servers forgets its own.
func prepareStore(ctx context.Context, p place) error {
	if had, err := p.hasStore(); err == nil && !had && p.Join == "" && !p.Store.there() {
		if err := p.hasRoom(); err != nil {
			return err
		}
	}
	if err := haveLeft(p); err != nil {
		return err
	}
	if _, serves := daemon(p, "server"); serves {
		return nil
	}
	return mayUseStore(ctx, p)
}

// collides returns an error if a new host already uses addresses of the cluster's ranges. A host of
// a cluster starts in any case: its ranges stay for life.
func collides(p place) error {
	had, err := p.hasStore()
	m, merr := trust.LoadMembership(p.trust())
	if err != nil || merr != nil || had || m != nil {
		return errors.Join(err, merr)
	}
	what, err := features.Collision()
	if err != nil || what == "" {
		return err
	}
	flags, err := features.Suggest()
	if err != nil {
		return err
	}
	where := "on all hosts of the cluster"
	if p.Join != "" {
		where = "with the ranges of that cluster"
	}
	return fmt.Errorf("%w: the services have %s and the instances %s, but %s; choose other "+
		"ranges %s: `pando up %s`", pando.ErrInvalid, pando.VIPs4, pando.Instances4, what, where, flags)
}

// elsewhere returns an error if daemons of another host name or with other folders run here.
func elsewhere(p place) error {
	for _, role := range []string{"server", "agent"} {
		pid, alive := daemon(p, role)
		if !alive {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // it has just ended
		}
		is := map[string]string{}
		for words := strings.Split(string(line), "\x00"); len(words) > 1; words = words[1:] {
			is[words[0]] = words[1]
		}
		if is["--data-dir"] != p.Data || is["--host"] != p.Host {
			return fmt.Errorf("%w: pando runs here as host %s with its data in %s; "+
				"`pando down --data-dir %[3]s --host %[2]s` stops it",
				pando.ErrExists, is["--host"], is["--data-dir"])
		}
	}
	return nil
}

// ignored returns an error for flags that running daemons would ignore.
func ignored(p place, given map[string]bool) error {
	asked := p.settings()
	maps.DeleteFunc(asked, func(name, _ string) bool { return !given[name] })
	if len(asked) == 0 || !p.whole() {
		return nil
	}
	live, err := running(place{folders: folders{Run: p.Run}})
	if errors.Is(err, pando.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	is := live.settings()
	var differ []string
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if asked[name] != is[name] {
			differ = append(differ, fmt.Sprintf("--%s is %s and not %s",
				name, cmp.Or(is[name], "empty"), cmp.Or(asked[name], "empty")))
		}
	}
	if differ == nil {
		return nil
	}
	return cli.Usagef("already up, where %s: `pando down` first, then `pando up` with these flags",
		strings.Join(differ, " and "))
}

// whole reports whether every daemon of this host runs. A daemon that has ended may start with
// other flags.
func (p place) whole() bool {
	_, tends := daemon(p, "agent")
	_, serves := daemon(p, "server")
	own, err := p.hasStore()
	return tends && (serves || err == nil && !own)
}

// settings returns, by name, the flags that daemons read only at their start.
func (p place) settings() map[string]string {
	is := map[string]string{
		"address": p.Address, "listen": p.Listen, "http": p.HTTP, "pool": strconv.Itoa(p.Pool),
		"uplink": strings.Join(p.Uplinks, ","), "label": strings.Join(p.Labels, ","),
		"vips": p.VIPs, "instances": p.Instances, "announce": p.Announce,
		"steer": p.Steer, "ovs-run": p.OVS,
	}
	maps.Copy(is, p.BGP.settings())
	maps.Copy(is, p.Store.settings())
	return is
}

// ownAPI returns a client of the daemons of this host. told gets what a request waits for.
func ownAPI(p place, told func(what string)) *api.Client {
	c := api.NewClient(p.api(), clock.Clock{})
	c.Daemon = func() string { return cli.ListenerOf(p.api()) }
	c.Waits = told
	return c
}

// answering waits until the server answers and this host's agent has joined after the time since. told
// gets what it waits for.
func answering(
	ctx context.Context, p place, roles []string, since time.Time, began map[string]int64,
	told func(what string),
) ([]pando.HostStatus, error) {
	client := ownAPI(p, told)
	for begin := time.Now(); ; {
		hosts, err := client.Hosts(ctx)
		if err == nil && hosted(hosts, p.Host, since) {
			return hosts, frozen(hosts, p.Host)
		}
		switch slow := time.Since(begin) > pando.WaitToldAfter; {
		case slow && err != nil:
			told("an answer of the daemons on this host")
		case slow:
			told("the agent of this host to join")
		}
		for _, role := range roles {
			if _, alive := daemon(p, role); !alive {
				log := daemonLog(p, role)
				end := tail(log, began[role], 10)
				if strings.Contains(end, "panic: ") { // etcd panics at a file that it cannot read
					end += "\n" + p.advice()
				}
				return nil, fmt.Errorf("%w: the %s ended at once; the end of %s:\n%s",
					pando.ErrNotReady, role, log, end)
			}
		}
		if serr := pando.Sleep(ctx, clock.Clock{}, 5*time.Millisecond); serr != nil {
			why := ""
			if full := p.hasRoom(); full != nil && roles[0] == "server" && !p.Store.there() {
				why = "; " + full.Error()
			}
			for _, role := range roles {
				log := daemonLog(p, role)
				why += fmt.Sprintf("\nthe end of %s:\n%s", log, tail(log, began[role], 5))
			}
			if err != nil {
				why = fmt.Sprintf(" (%v)%s", err, why)
			}
			return nil, fmt.Errorf("%w: the daemons did not answer within %s%s",
				pando.ErrNotReady, upWait, why)
		}
	}
}

func hosted(hosts []pando.HostStatus, name string, since time.Time) bool {
	return slices.ContainsFunc(hosts, func(h pando.HostStatus) bool {
		return string(h.Name) == name && h.State != pando.HostAway && !h.Joined.Before(since)
	})
}

// frozen returns an error if a host is up and does not recognise the store.
func frozen(hosts []pando.HostStatus, name string) error {
	for _, h := range hosts {
		if string(h.Name) == name && h.Frozen != "" {
			return fmt.Errorf("%w: pando is up on %s, and this host keeps what it has: %s",
				pando.ErrFrozen, name, h.Frozen)
		}
	}
	return nil
}
