package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/trust"
)

// Token returns `pando token`.
func Token(out *cli.Output) *cobra.Command {
	m := machine{out}
	var p place
	var keep time.Duration
	var uses int
	c := &cobra.Command{
		Use: "token", Short: "print a token that admits hosts to this cluster",
		Long: "Print a token, and the command line that makes another host a member. The token\n" +
			"contains the hash of the cluster's authority, so the host joins no other cluster. The\n" +
			"token admits --uses hosts within --for. Run this command as root on a server's host, or\n" +
			"on a host with the right `admit` (`pando hosts allow`).",
		Example: "  pando token\n  pando token --for 10m --uses 3 -o json", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := p.complete(); err != nil {
				return err
			}
			live, err := running(p)
			if err != nil {
				return err
			}
			if _, serves := daemon(live, "server"); !serves {
				return m.inviteFrom(c.Context(), live, keep, uses)
			}
			mint := func(a *trust.Authority, until time.Time) (string, error) {
				return a.Token(until, uses)
			}
			return m.invite(live, keep, uses, "", mint)
		},
	}
	p.runFlag(c)
	cli.DurationVar(c.Flags(), &keep, "for", time.Hour, "how long hosts can join by it")
	c.Flags().IntVar(&uses, "uses", 1, "how many hosts can join by it")
	return out.Flag(c)
}

// inviter makes tokens for operators of this host and of hosts with the right.
type inviter struct {
	at        place
	authority *trust.Authority
	log       *slog.Logger
}

// Invite implements pando.Inviter.
func (i inviter) Invite(
	_ context.Context, uses int, keep time.Duration, by pando.Asker,
) (pando.Invitation, error) {
	return invitation(i.at, keep, uses, func(until time.Time) (string, error) {
		i.log.Info("made a token", "uses", uses, "until", until, "by", by.Name)
		return i.authority.Token(until, uses)
	})
}

// invitation returns a token that ends after keep, for the door of this server.
func invitation(
	p place, keep time.Duration, uses int, mint func(until time.Time) (string, error),
) (pando.Invitation, error) {
	if keep <= 0 {
		return pando.Invitation{}, fmt.Errorf("%w: a token for %s: want a time above 0",
			pando.ErrInvalid, keep)
	}
	if p.Listen == "" {
		return pando.Invitation{}, fmt.Errorf("%w: the server does not listen for other hosts; "+
			"`pando down`, then `pando up --listen ADDRESS`", pando.ErrRefused)
	}
	until := clock.Clock{}.Now().Add(keep).Truncate(time.Second)
	token, err := mint(until)
	return pando.Invitation{Token: token, Join: p.open(joinPort), Until: until, Uses: uses}, err
}

// invite prints a token for the own server and the command line for other hosts, which ends with
// more.
func (m machine) invite(
	live place, keep time.Duration, uses int, more string,
	mint func(a *trust.Authority, until time.Time) (string, error),
) error {
	a, err := trust.OpenAuthority(live.trust(), clock.Clock{}.Now())
	if err != nil {
		return err
	}
	is, err := invitation(live, keep, uses, func(until time.Time) (string, error) {
		return mint(a, until)
	})
	if err != nil {
		return err
	}
	return m.showInvitation(is, more)
}

// inviteFrom asks a server for a token, as this host's right allows.
func (m machine) inviteFrom(
	ctx context.Context, live place, keep time.Duration, uses int,
) error {
	client := ownAPI(live, cli.Told(m.Stderr))
	client.Operator = cli.Person(m.Getenv)
	is, err := client.Members().Invite(ctx, api.Inviting{Uses: uses, ForSeconds: keep.Seconds()})
	if err != nil {
		return err
	}
	return m.showInvitation(is, "")
}

func (m machine) showInvitation(is pando.Invitation, more string) error {
	return m.Show(is, func(w io.Writer) {
		on := "the other host"
		if is.Uses > 1 {
			on = fmt.Sprintf("%d other hosts", is.Uses)
		}
		at := is.Join
		if host, port, err := net.SplitHostPort(at); err == nil && port == strconv.Itoa(joinPort) {
			at = host
		}
		fmt.Fprintf(w, "until %s, on %s:\n  pando up --join %s --token %s%s\n",
			is.Until.Local().Format("15:04:05"), on, at, is.Token, more)
	})
}
