package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/systemd"
	"pando.run/pando/driver/store/etcd"
)

// job runs until ctx ends, or until it fails.
type job func(ctx context.Context) error

// daemonUmask is the umask of the daemons, independent of the shell that started them. Only root
// can write their files.
const daemonUmask = 0o022

// settle makes this process the daemon of a role: its log, its folders and its pid file.
func settle(p place, role string) (*slog.Logger, error) {
	rotateLog(p, role)
	syscall.Umask(daemonUmask)
	if err := errors.Join(os.MkdirAll(p.Data, 0o750), os.MkdirAll(p.Run, 0o755)); err != nil {
		return nil, fmt.Errorf("make the folders for data and sockets: %w", err)
	}
	log := slog.New(lineCounter{slog.Default().Handler(), &logged})
	return log.With("role", role), writePid(p, role, os.Getpid())
}

// together runs jobs until one of them or ctx ends, then ends all of them.
func together(ctx context.Context, jobs ...job) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := make(chan error, len(jobs))
	for _, job := range jobs {
		go func() { ends <- job(ctx) }()
	}
	var first error
	for range jobs {
		err := <-ends
		if first == nil && err != nil && !errors.Is(err, context.Canceled) {
			first = err
		}
		cancel()
	}
	return first
}

// serveHTTP returns a job that serves until ctx ends.
func serveHTTP(l net.Listener, h http.Handler) job {
	return func(ctx context.Context) error {
		s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleWaitMax,
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				return byGuest(byUser(ctx, c), c)
			}}
		stop := context.AfterFunc(ctx, func() { s.Close() })
		defer stop()
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// listen creates a unix socket with the given mode. It replaces the socket of a dead daemon.
func listen(path string, mode os.FileMode) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("%w: another daemon answers at %s; stop it with `pando down`",
			pando.ErrExists, path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove a stale socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return socket{l}, os.Chmod(path, mode)
}

// signOfLife returns a job that tells systemd that this daemon lives, as long as alive returns.
func signOfLife(alive func()) job {
	return func(ctx context.Context) error {
		systemd.Watch(ctx, clock.Clock{}, alive)
		<-ctx.Done() // Watch returns without systemd; the end of a job ends all jobs
		return ctx.Err()
	}
}

// until returns a job that ends with the store. A server that the others removed forgets that it
// was one.
func until(p place, ends <-chan error) job {
	return func(ctx context.Context) error {
		select {
		case err := <-ends:
			if errors.Is(err, etcd.ErrRemoved) {
				return errors.Join(err, leaveServers(p))
			}
			return fmt.Errorf("the store ended: %w", err)
		case <-ctx.Done():
			return nil
		}
	}
}
