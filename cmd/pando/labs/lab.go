// Package labs holds the commands about virtual hosts to try things on.
package labs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/host"
	"pando.run/pando/driver/wall"
	"pando.run/pando/lab"
	"pando.run/pando/spec/span"
)

// Lab returns `pando lab`.
func Lab(o *console.Console) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "lab", Short: "make virtual hosts on this machine",
		Example: "  pando lab up --hosts 3\n  pando lab exec host2 -- pando hosts\n  pando lab down",
	}
	c.PersistentFlags().StringVar(&dir, "dir", "/var/lib/pando-lab", "folder with the lab's record")
	type run func(*cobra.Command, *lab.Lab, []string) error
	opened := func(f run) func(*cobra.Command, []string) error {
		return func(c *cobra.Command, args []string) error {
			l, err := lab.Open(dir)
			if err != nil {
				return err
			}
			return f(c, l, args)
		}
	}
	list := func(c *cobra.Command, l *lab.Lab, _ []string) error { return listLab(c.Context(), o, l) }
	exec := func(c *cobra.Command, l *lab.Lab, args []string) error {
		return labExec(c.Context(), o, l, args)
	}
	c.AddCommand(labFaults(o, func() (*lab.Lab, error) { return lab.Open(dir) })...)
	c.AddCommand(labUp(o, &dir),
		o.Out.Flag(&cobra.Command{
			Use: "ls", Short: "list the hosts", Example: "  pando lab ls",
			Args: cobra.NoArgs, RunE: opened(list),
		}),
		&cobra.Command{
			Use: "down", Short: "end the hosts and their processes", Example: "  pando lab down",
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return lab.Sweep(dir) },
		},
		&cobra.Command{
			Use: "exec HOST -- COMMAND [ARG…]", Short: "run a command on a host",
			Long: "Run a command on a virtual host or on the client. It runs in the current folder, or\n" +
				"in / if the host has another folder of that name. Its pando is this one.",
			Example: "  pando lab exec client -- curl http://10.127.0.2/\n" +
				"  pando lab exec host2 -- pando hosts",
			Args: cobra.MinimumNArgs(2), RunE: opened(exec),
		})
	return c
}

// LabInit returns the hidden command that is the first process of a virtual host.
func LabInit() *cobra.Command {
	return &cobra.Command{
		Use: "lab-init", Short: "be the first process of a virtual host",
		Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return cli.Exit(lab.InitMain(args)) },
	}
}

func labUp(o *console.Console, dir *string) *cobra.Command {
	var hosts int
	var bare, router bool
	var skews map[string]string
	c := &cobra.Command{
		Use: "up", Short: "make hosts, a switch and a client, and start Pando",
		Long: "Make virtual hosts, a switch between them and a client. The first host runs the\n" +
			"server, and the others join it. With --bare, the hosts run nothing. With --router, a\n" +
			"router (BIRD) lies between the client and the VIPs. The hosts announce the VIPs by BGP.\n" +
			"With --skew, the pando of a host has a clock that is off.",
		Example: "  pando lab up --hosts 3\n  pando lab up --hosts 2 --bare\n" +
			"  pando lab up --router && pando lab exec router -- ip route\n" +
			"  pando lab up --hosts 2 --skew host2=-60s", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find the pando binary: %w", err)
			}
			skew, err := skewsOf(skews, hosts)
			if err != nil {
				return err
			}
			l, err := lab.Up(c.Context(), lab.Config{Hosts: hosts, Name: "host", Self: self, Dir: *dir,
				Router: router, Skew: skew})
			if err == nil && router {
				if err = lab.Route(c.Context(), l, lab.BGP{}); err != nil {
					err = errors.Join(err, l.Down())
				}
			}
			if err == nil && !bare {
				if err = populate(c.Context(), l, self); err != nil {
					err = errors.Join(err, l.Down())
				}
			}
			if err != nil {
				return err
			}
			return listLab(c.Context(), o, l)
		},
	}
	c.Flags().IntVar(&hosts, "hosts", 3, "number of hosts")
	c.Flags().BoolVar(&bare, "bare", false, "start nothing on the hosts")
	c.Flags().BoolVar(&router, "router", false, "add a router, to which the hosts speak BGP")
	c.Flags().StringToStringVar(&skews, "skew", nil, "how far the clock of a host is ahead, as HOST=60s")
	return o.Out.Flag(c)
}

// skewsOf reads the skews of hosts of a lab.
func skewsOf(given map[string]string, hosts int) (map[string]time.Duration, error) {
	out := map[string]time.Duration{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		d, err := span.Parse(given[name])
		if err != nil {
			return nil, cli.Usagef("--skew %s=%s: want a duration such as -60s", name, given[name])
		}
		n, err := strconv.Atoi(strings.TrimPrefix(name, "host"))
		if err != nil || n < 1 || n > hosts {
			return nil, cli.Usagef("--skew %s: the lab has the hosts host1 to host%d", name, hosts)
		}
		out[name] = d
	}
	return out, nil
}

// populate joins the hosts of a lab into one cluster.
func populate(ctx context.Context, l *lab.Lab, self string) error {
	first := l.Hosts[0].Name
	up := []string{self, "up"}
	if l.Router.Name != "" {
		up = append(up, "--announce", "bgp", "--bgp-router", lab.RouterFlag(l))
	}
	if _, err := labRun(ctx, l, first, up...); err != nil {
		return err
	}
	if len(l.Hosts) == 1 {
		return nil
	}
	text, err := labRun(ctx, l, first, self, "token", "--uses", strconv.Itoa(len(l.Hosts)-1), "-o",
		"json")
	if err != nil {
		return err
	}
	var is struct{ Join, Token string }
	if err := json.Unmarshal(text, &is); err != nil {
		return fmt.Errorf("read the token of %s: %w", first, err)
	}
	ends := make(chan error)
	for _, h := range l.Hosts[1:] {
		go func() {
			_, err := labRun(ctx, l, h.Name, slices.Concat(up, []string{"--join", is.Join, "--token",
				is.Token})...)
			ends <- err
		}()
	}
	for range l.Hosts[1:] {
		err = errors.Join(err, <-ends)
	}
	return err
}

// labRun runs a pando command on a host and waits for its end.
func labRun(ctx context.Context, l *lab.Lab, host string, argv ...string) ([]byte, error) {
	cmd, err := l.Exec(ctx, host, argv...)
	if err != nil {
		return nil, err
	}
	var reason bytes.Buffer
	cmd.Stderr = &reason
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("pando %s on lab host %s: %w: %s",
			argv[1], host, err, strings.TrimSpace(reason.String()))
	}
	return out, nil
}

func labExec(ctx context.Context, o *console.Console, l *lab.Lab, args []string) error {
	cmd, err := l.Exec(ctx, args[0], args[1:]...)
	if err != nil {
		return err
	}
	if self, err := os.Executable(); err == nil {
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(self)+":"+os.Getenv("PATH"))
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.Out.Stdin, o.Out.Stdout, o.Out.Stderr
	err = cmd.Run()
	var child *exec.ExitError
	if errors.As(err, &child) && child.Exited() {
		return cli.Code(child.ExitCode())
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// labLook is how long `pando lab ls` waits for an answer from the server.
const labLook = 2 * time.Second

// labHost is one line of `pando lab ls`.
type labHost struct {
	lab.Host
	Role   string      `json:"role"`
	State  string      `json:"state"`
	Faults []lab.Fault `json:"faults,omitempty"` // see `pando lab cut` and its like
}

// labHosts returns the role and the state of every member of a lab. The state depends on the
// namespaces and on the answer of the first host's server.
// The second result is why the roles are unknown, or nil.
func labHosts(ctx context.Context, l *lab.Lab) ([]labHost, error) {
	ctx, cancel := context.WithTimeout(ctx, labLook)
	defer cancel()
	socket := fmt.Sprintf("/proc/%d/root/run/pando/api.sock", l.Hosts[0].Pid)
	known, err := api.NewClient(socket, wall.Clock{}).Hosts(ctx)
	if _, none := os.Stat(socket); none != nil {
		err = nil // no server was started there, or its host is dead
	}
	alive := l.List()
	faults, _ := l.Faults()
	var out []labHost
	for _, h := range append(slices.Clone(l.Hosts), l.Client) {
		one := labHost{Host: h, Role: "-", State: "up"}
		if h.Name == l.Client.Name {
			one.Role = "client"
		}
		for _, s := range known {
			if string(s.Name) == h.Name {
				one.Role, one.State = host.RoleOf(s, host.ServersOf(known)), string(s.State)
			}
		}
		if !slices.ContainsFunc(alive, func(a lab.Host) bool { return a.Name == h.Name }) {
			one.State = "dead"
		}
		for _, f := range faults {
			if f.Host == h.Name || f.Peer == h.Name {
				one.Faults = append(one.Faults, f)
			}
		}
		out = append(out, one)
	}
	return out, err
}

func listLab(ctx context.Context, o *console.Console, l *lab.Lab) error {
	all, unknown := labHosts(ctx, l)
	if unknown != nil {
		fmt.Fprintf(o.Out.Stderr, "the roles are unknown: %v\n", unknown)
	}
	return o.Out.Show(all, func(w io.Writer) {
		rows := []string{console.Row("HOST", "IPV4", "IPV6", "ROLE", "STATE", "PID")}
		for _, h := range all {
			rows = append(rows, console.Row(h.Name, h.IPv4, h.IPv6, h.Role, h.State, h.Pid))
		}
		cli.Columns(w, rows...)
		for _, h := range all {
			for _, f := range h.Faults {
				if f.Host == h.Name { // a cut is listed at both of its members
					fmt.Fprintln(w, "fault:", f)
				}
			}
		}
	})
}
