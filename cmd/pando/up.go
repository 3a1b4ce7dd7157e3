package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
)

// upWait is how long `pando up` waits for its daemons.
const upWait = 20 * time.Second

func upCommand(o *command) *cobra.Command {
	var p place
	c := &cobra.Command{
		Use: "up", Short: "start Pando on this machine: the server and the agent, each a process of its own",
		Long: "Starts what does not run. With --join it starts an agent alone, which makes this machine a host of the cluster whose server is at\n" +
			"that address; `pando token` on the server's host prints the token. A host that joined stays a member: `pando up` is enough then.",
		Example: "  pando up\n  pando up --uplink eth0 --address 192.0.2.10\n  pando up --join 192.0.2.10 --token pando1…",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := p.complete(); err != nil {
				return err
			}
			return o.up(c.Context(), p)
		},
	}
	p.flags(c)
	p.joinFlags(c)
	return c
}

func (o *command) up(ctx context.Context, p place) error {
	ctx, cancel := context.WithTimeout(ctx, upWait)
	defer cancel()
	if _, serves := daemon(p, "server"); serves && p.Join != "" {
		return fmt.Errorf("%w: this host has a cluster of its own; to forget it with all that is in it: pando down --purge", pando.ErrExists)
	}
	m, err := join(ctx, p)
	if err != nil {
		return err
	}
	roles := []string{"server", "agent"}
	if m != nil {
		roles = roles[1:]
	}
	var since time.Time
	for _, role := range roles {
		if _, alive := daemon(p, role); alive {
			continue
		}
		if role == "agent" {
			since = time.Now() // a record from before is a former agent's
		}
		if err := startDaemon(p, role); err != nil {
			return err
		}
	}
	hosts, err := answering(ctx, p, roles, since)
	if err != nil {
		return err
	}
	is := struct {
		Host  string             `json:"host"`
		API   string             `json:"api"`
		Hosts []pando.HostStatus `json:"hosts"`
	}{p.Host, p.api(), hosts}
	return o.show(is, func(w io.Writer) {
		fmt.Fprintf(w, "pando is up on %s (api %s). Next: pando deploy SPEC.yaml\n", p.Host, p.api())
	})
}

// answering waits until the server answers and this host's agent has joined since then.
func answering(ctx context.Context, p place, roles []string, since time.Time) ([]pando.HostStatus, error) {
	client := api.NewClient(p.api())
	for {
		hosts, err := client.Hosts(ctx)
		if err == nil && hosted(hosts, p.Host, since) {
			return hosts, nil
		}
		for _, role := range roles {
			if _, alive := daemon(p, role); !alive {
				return nil, fmt.Errorf("%w: the %s ended at once; the end of %s:\n%s", pando.ErrNotReady, role, daemonLog(p, role), tail(daemonLog(p, role), 10))
			}
		}
		if serr := pando.Sleep(ctx, pando.WallClock{}, 5*time.Millisecond); serr != nil {
			return nil, fmt.Errorf("%w: the daemons did not answer within %s (%v); their logs are in %s", pando.ErrNotReady, upWait, err, p.logs())
		}
	}
}

func hosted(hosts []pando.HostStatus, name string, since time.Time) bool {
	return slices.ContainsFunc(hosts, func(h pando.HostStatus) bool {
		return string(h.Name) == name && h.State == pando.HostHere && !h.Joined.Before(since)
	})
}

func daemonLog(p place, role string) string { return filepath.Join(p.logs(), role+".log") }
func pidFile(p place, role string) string   { return filepath.Join(p.Run, role+".pid") }

// daemon finds the process of a role; a pid that now belongs to another program does not count.
func daemon(p place, role string) (pid int, alive bool) {
	b, err := os.ReadFile(pidFile(p, role))
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err == nil && len(line) == 0 { // in the midst of exec it has a program and no arguments yet; once it has ended, it has neither
		_, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return pid, err == nil
	}
	words := strings.Split(string(line), "\x00")
	return pid, err == nil && len(words) > 1 && words[1] == role
}

func startDaemon(p place, role string) error {
	for _, dir := range []string{p.Run, p.logs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("start the %s: %w", role, err)
		}
	}
	log, err := os.OpenFile(daemonLog(p, role), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("start the %s: %w", role, err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start the %s: %w", role, err)
	}
	cmd := exec.Command(self, append([]string{role}, p.args()...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the %s: %w", role, err)
	}
	if err := os.WriteFile(pidFile(p, role), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		return fmt.Errorf("remember the %s: %w", role, err)
	}
	return cmd.Process.Release()
}

func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
