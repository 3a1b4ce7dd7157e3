// Package console is an operator's connection to the API, with what all its commands print: rows,
// progress, and what stands in the way on the hosts.
//
// It makes no decision, and it never reads the store.
package console

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/trust"
	"pando.run/pando/driver/wall"
	"pando.run/pando/spec/nearest"
	"pando.run/pando/spec/span"
)

// Console is an operator's connection to the API, with the settings of the command that runs.
type Console struct {
	Out    *cli.Output
	Client *api.Client
	Wait   bool
	Within time.Duration
	Rest   time.Duration // pause between two looks of --wait
}

// WaitLook is the interval at which --wait polls a single service. With four or more services
// it polls each less often.
const WaitLook = 20 * time.Millisecond

// Open returns a console for the API that the environment names. It does not connect yet.
func Open(out *cli.Output) *Console {
	socket := out.Getenv("PANDO_API")
	if socket == "" {
		socket = "/run/pando/api.sock"
	}
	client := api.NewClient(socket, wall.Clock{})
	client.Daemon = func() string { return cli.ListenerOf(socket) }
	if token := out.Getenv("PANDO_TOKEN"); token != "" {
		client = remote(socket, token)
		client.Daemon = func() string { return "the server at " + socket }
	}
	client.Operator = cli.Person(out.Getenv)
	client.Waits = cli.Told(out.Stderr)
	return &Console{Out: out, Client: client, Rest: WaitLook}
}

// WaitFlags adds the flags of a command that can wait for its effect.
func (o *Console) WaitFlags(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&o.Wait, "wait", false, "return when the change has taken effect")
	cli.DurationVar(c.Flags(), &o.Within, "timeout", time.Minute, "time limit of --wait")
	return c
}

// OfService makes a command about one service. The first argument is the name of the service.
func (o *Console) OfService(
	c *cobra.Command, args cobra.PositionalArgs,
	run func(ctx context.Context, s pando.ServiceKey, args []string) error,
) *cobra.Command {
	c.Args = args
	c.ValidArgsFunction = o.CompleteServices
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return run(c.Context(), pando.ServiceKey{}, nil)
		}
		key, err := pando.ParseServiceKey(args[0])
		if err != nil {
			return err
		}
		return o.SuggestService(c.Context(), key, run(c.Context(), key, args[1:]))
	}
	return c
}

// SuggestService adds the most likely intended name to the error about a missing service.
func (o *Console) SuggestService(ctx context.Context, s pando.ServiceKey, err error) error {
	if !errors.Is(err, pando.ErrNotFound) {
		return err
	}
	all, lerr := o.Client.Services(ctx)
	if lerr != nil {
		return err
	}
	var names, others []string
	for _, st := range all {
		if st.ServiceKey == s {
			// The service exists; the error is about a part of it.
			return err
		}
		names = append(names, st.ServiceKey.String())
		if st.Name == s.Name {
			others = append(others, st.ServiceKey.String())
		}
	}
	if len(others) > 0 && s.Tenant == pando.DefaultTenant {
		return fmt.Errorf("service %s: %w; a service of another tenant has that name: %s",
			s, pando.ErrNotFound, strings.Join(others, ", "))
	}
	if best := nearest.Word(s.String(), names); best != "" {
		return fmt.Errorf("service %s: %w; did you mean %s?", s, pando.ErrNotFound, best)
	}
	return fmt.Errorf("service %s: %w; `pando status` lists the services", s, pando.ErrNotFound)
}

// CompleteServices offers the names of services to the shell.
func (o *Console) CompleteServices(
	c *cobra.Command, args []string, _ string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Second)
	defer cancel()
	all, err := o.Client.Services(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []cobra.Completion
	for _, st := range all {
		about := cli.Clean(fmt.Sprintf("%s, %s", st.Phase, st.Reason))
		names = append(names, cobra.CompletionWithDesc(st.ServiceKey.String(), about))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// Until polls a service until done returns true or an error, or the time is up.
func (o *Console) Until(
	ctx context.Context, s pando.ServiceKey, shown *Progress,
	done func(pando.ServiceStatus) (bool, error),
) (pando.ServiceStatus, error) {
	within, cancel := context.WithTimeout(ctx, o.Within)
	defer cancel()
	last := pando.ServiceStatus{Service: pando.Service{ServiceKey: s}}
	waits := Reasons{O: o, shown: shown != nil, Began: time.Now()}
	for {
		st, err := o.Client.Service(within, s)
		if err == nil {
			last = st
			shown.print(st)
			waits.Print(st)
			if ok, hopeless := done(st); ok || hopeless != nil {
				return st, hopeless
			}
		}
		if err != nil && within.Err() == nil {
			return last, err
		}
		if pando.Sleep(within, wall.Clock{}, o.Rest) == nil {
			continue
		}
		if ctx.Err() != nil {
			return last, fmt.Errorf("%w: the change of %s continues; `pando status %s` shows its progress",
				ctx.Err(), s, s)
		}
		return last, fmt.Errorf("waited %s: %w", span.Text(o.Within), Explain(last, last.Target))
	}
}

// awayDrain returns the host that is away with the only draining instances of a service, or "".
func awayDrain(st pando.ServiceStatus) (away pando.HostName) {
	for _, i := range st.Instances {
		if i.Phase != pando.PhaseDraining {
			continue
		}
		if i.Away == "" {
			return ""
		}
		away = i.Host
	}
	return away
}

// Explain returns the error of a revision that does not serve. The error has the newest failure,
// its log lines and the command that prints more.
func Explain(st pando.ServiceStatus, revision int) error {
	if waits := pando.DrainsOf(st.Instances); waits != "" && st.Problem == nil {
		end := fmt.Sprintf("pando rollout finish %s --now", st.ServiceKey)
		if st.Removing {
			end = fmt.Sprintf("pando rm %s --now", st.ServiceKey)
		}
		if away := awayDrain(st); away != "" {
			return fmt.Errorf("%s: %w: %s; it leaves once %s is back, and `pando hosts rm %[4]s --force` "+
				"gives it up", st.ServiceKey, pando.ErrNotReady, cli.Clean(waits), away)
		}
		return fmt.Errorf("%s: %w: %s; `%s` ends that at once", st.ServiceKey, pando.ErrNotReady,
			cli.Clean(waits), end)
	}
	if st.Problem == nil {
		return fmt.Errorf("revision %d of %s: %w: the service is %s: %s; `pando why %s` prints more",
			revision, st.ServiceKey, pando.ErrNotReady, st.Phase, cli.Clean(st.Reason), st.ServiceKey)
	}
	about := ""
	if st.Problem.Instance != "" {
		about = fmt.Sprintf(": instance %s", st.Problem.Instance)
	}
	text := ""
	for _, l := range st.Problem.Lines {
		text += "\n  | " + cli.Clean(l)
	}
	return fmt.Errorf("revision %d of %s: %w%s: %s%s\n`pando why %s` prints more",
		revision, st.ServiceKey, pando.ErrNotReady, about, cli.Clean(st.Problem.Reason), text,
		st.ServiceKey)
}

// TargetOf reads SERVICE, TENANT/SERVICE, SERVICE/INSTANCE or TENANT/SERVICE/INSTANCE. A service may
// begin with the name of its tenant, as an instance does with that of its service: shop/shop-web is
// the service, if there is one.
func TargetOf(
	ctx context.Context, o *Console, text string,
) (pando.ServiceKey, pando.InstanceID, error) {
	key, instance, err := target(text)
	if err != nil || instance == "" || strings.Count(text, "/") != 1 {
		return key, instance, err
	}
	whole, err := pando.ParseServiceKey(text)
	if err != nil {
		return key, instance, nil
	}
	if _, err := o.Client.Service(ctx, whole); err != nil {
		return key, instance, nil // the command itself says what is wrong
	}
	return whole, "", nil
}

// remote returns a client of a server elsewhere, by a token of a tenant. A wrong address or token
// is the error of each request.
func remote(at, token string) *api.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		u, err := url.Parse(at)
		if err != nil || u.Scheme != "https" || u.Port() == "" {
			return nil, fmt.Errorf("%w: with PANDO_TOKEN, PANDO_API is %q: want https://ADDRESS:7401 of a "+
				"server", pando.ErrInvalid, at)
		}
		c, err := trust.ByTenantToken(token)
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", u.Host)
	}
	return api.NewRemoteClient(at, token, wall.Clock{}, dial)
}

// target reads SERVICE, TENANT/SERVICE, SERVICE/INSTANCE or TENANT/SERVICE/INSTANCE. The name of an
// instance begins with the name of its service.
func target(text string) (pando.ServiceKey, pando.InstanceID, error) {
	at := strings.LastIndexByte(text, '/')
	if at >= 0 {
		rest, instance := text[:at], text[at+1:]
		service := rest[strings.LastIndexByte(rest, '/')+1:]
		if strings.HasPrefix(instance, service+"-") {
			key, err := pando.ParseServiceKey(rest)
			return key, pando.InstanceID(instance), err
		}
	}
	key, err := pando.ParseServiceKey(text)
	return key, "", err
}
