package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
)

// wardenRole is the process that restarts the daemons of a host without systemd.
const wardenRole = "warden"

// Warden returns the hidden command that restarts the daemons of this host when they end.
func Warden() *cobra.Command {
	var p place
	c := &cobra.Command{
		Use: wardenRole, Short: "restart the daemons of this host (started by up)",
		Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return watchOver(c.Context(), p) },
	}
	p.flags(c)
	return c
}

// roles returns the daemons that this host has. A host that joined a cluster has a server only if
// it became one.
func (p place) roles() ([]string, error) {
	serves, err := p.isServer()
	if err != nil || !serves {
		return []string{"agent"}, err
	}
	return []string{"server", "agent"}, nil
}

// watchOver restarts the daemons of this host until ctx ends. Its end ends no daemon. The daemons
// start a warden again that ended without being asked.
func watchOver(ctx context.Context, p place) error {
	if err := p.locate(); err != nil {
		return err
	}
	rotateLog(p, wardenRole)
	log := slog.Default().With("role", wardenRole)
	roles, err := p.roles()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for _, role := range roles {
		all.Go(func() { keepAlive(ctx, p, role, log.With("daemon", role)) })
	}
	all.Wait()
	return errors.Join(os.Remove(pidFile(p, wardenRole))) // its end was asked for
}

// keepAlive starts a daemon again each time it ends, until ctx ends.
func keepAlive(ctx context.Context, p place, role string, log *slog.Logger) {
	wait := time.Duration(0)
	for {
		since := time.Now()
		if pid, alive := daemon(p, role); alive {
			if ended(ctx, pid) != nil {
				return
			}
		}
		if roles, err := p.roles(); err == nil && !slices.Contains(roles, role) {
			log.Warn("this host has this daemon no more")
			return
		}
		wait = cli.RestartWait(wait, time.Since(since))
		log.Warn("a daemon ended and is started again", "wait", wait)
		if pando.Sleep(ctx, clock.Clock{}, wait) != nil {
			return
		}
		if err := startDaemon(p, role); err != nil {
			log.Error("a daemon cannot be started", "error", err)
		}
	}
}

// ended waits until a process has ended. It reaps the process if that is a child of this one.
func ended(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Now()) })
	defer stop()
	err = raw.Read(func(fd uintptr) bool {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, 0)
		return err == nil && n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // ECHILD: another process reaps it
	return err
}

const (
	wardenLook = 10 * time.Second // between two looks for a warden
	wardenRest = time.Second      // between two starts of one
)

// reviving returns a job that starts the warden again if it ended without being asked: its pid file
// is then still there. The agent has this job. The server, which has no right to start a daemon of
// root, has not.
func reviving(p place, log *slog.Logger) job {
	return func(ctx context.Context) error {
		for {
			wait := wardenLook
			if _, err := os.Stat(pidFile(p, wardenRole)); err == nil {
				wait = wardenRest
				if pid, alive := daemon(p, wardenRole); alive {
					if err := ended(ctx, pid); err != nil {
						return ctx.Err()
					}
				} else if err := startDaemon(p, wardenRole); err != nil {
					log.Warn("the warden cannot be started", "error", err)
				} else {
					log.Warn("the warden had ended and is started again")
				}
			}
			if err := pando.Sleep(ctx, clock.Clock{}, wait); err != nil {
				return err
			}
		}
	}
}

// endWarden ends the warden, so that the daemons may end. No daemon starts it again, because its
// pid file goes first.
func (m machine) endWarden(ctx context.Context, p place) error {
	pid, alive := daemon(p, wardenRole)
	if err := os.Remove(pidFile(p, wardenRole)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("end the warden: %w", err)
	}
	for _, r := range asking {
		if !alive {
			return nil
		}
		if err := syscall.Kill(pid, r.signal); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("end the warden: %w", err)
		}
		within, cancel := context.WithTimeout(ctx, r.within)
		alive = ended(within, pid) != nil
		cancel()
		if ctx.Err() != nil {
			return fmt.Errorf("end the warden (pid %d): %w", pid, ctx.Err())
		}
	}
	if alive {
		return fmt.Errorf("the warden (pid %d) cannot be killed: it waits for the kernel", pid)
	}
	return nil
}
