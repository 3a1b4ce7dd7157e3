package daemon

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/trust"
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
			"token admits --uses hosts within --for. Run this command on the server's host, as\n" +
			"root.",
		Example: "  pando token\n  pando token --for 10m --uses 3 -o json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := p.complete(); err != nil {
				return err
			}
			mint := func(a *trust.Authority, until time.Time) (string, error) {
				return a.Token(until, uses)
			}
			return m.invite(p, keep, uses, "", mint)
		},
	}
	p.runFlag(c)
	c.Flags().DurationVar(&keep, "for", time.Hour, "how long hosts can join by it")
	c.Flags().IntVar(&uses, "uses", 1, "how many hosts can join by it")
	return out.Flag(c)
}

// invite prints a token and the command line for other hosts, which ends with more.
func (m machine) invite(
	p place, keep time.Duration, uses int, more string,
	mint func(a *trust.Authority, until time.Time) (string, error),
) error {
	if keep <= 0 {
		return fmt.Errorf("%w: --for %s: want a time above 0", pando.ErrInvalid, keep)
	}
	live, err := running(p)
	if err != nil {
		return err
	}
	if _, serves := daemon(live, "server"); !serves {
		return fmt.Errorf("%w: the server of this cluster is on another host; "+
			"`pando hosts` shows it; make the token there", pando.ErrNotFound)
	}
	if live.Listen == "" {
		return fmt.Errorf("%w: the server does not listen for other hosts; "+
			"`pando down`, then `pando up --listen ADDRESS`", pando.ErrRefused)
	}
	a, err := trust.OpenAuthority(live.trust(), time.Now())
	if err != nil {
		return err
	}
	until := time.Now().Add(keep).Truncate(time.Second)
	token, err := mint(a, until)
	if err != nil {
		return err
	}
	is := struct {
		Token string    `json:"token"`
		Join  string    `json:"join"`
		Until time.Time `json:"until"`
		Uses  int       `json:"uses"`
	}{token, live.open(joinPort), until, uses}
	return m.Show(is, func(w io.Writer) {
		on := "the other host"
		if uses > 1 {
			on = fmt.Sprintf("%d other hosts", uses)
		}
		fmt.Fprintf(w, "until %s, on %s:\n  pando up --join %s --token %s%s\n",
			until.Format("15:04:05"), on, live.Listen, token, more)
	})
}
