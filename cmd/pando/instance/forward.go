package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api/session"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// forwardsMax is the largest number of connections of one `pando port-forward`. Others wait.
const forwardsMax = 8

// PortForward returns `pando port-forward`.
func PortForward(o *console.Console) *cobra.Command {
	c := &cobra.Command{
		Use:   "port-forward SERVICE[/INSTANCE] [LOCAL:]REMOTE",
		Short: "reach a port of an instance from this machine",
		Long: "Listen at 127.0.0.1:LOCAL and connect each client to port REMOTE of an instance, on\n" +
			"any host. REMOTE is the port of the program, published or not. LOCAL 0 takes a free port.\n" +
			"At most 8 connections are open, and others wait. Ctrl-C ends it and closes them.",
		Example: "  pando port-forward website 8080\n  pando port-forward db/db-0 15432:5432",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: o.CompleteServices,
		RunE: func(c *cobra.Command, args []string) error {
			key, instance, err := console.TargetOf(c.Context(), o, args[0])
			if err != nil {
				return err
			}
			local, remote, err := forwarded(args[1])
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			st, err := o.Client.Service(ctx, key)
			if err != nil {
				return o.SuggestService(c.Context(), key, err)
			}
			if !hasInstance(st, instance) {
				return fmt.Errorf("instance %s of %s: %w; `pando ps %s` lists the instances", instance, key,
					pando.ErrNotFound, key)
			}
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp",
				net.JoinHostPort("127.0.0.1", strconv.Itoa(int(local))))
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("%w: port %d of this machine is in use; choose another one: "+
					"pando port-forward %s 0:%d", pando.ErrConflict, local, args[0], remote)
			}
			if err != nil {
				return fmt.Errorf("listen at 127.0.0.1:%d: %w", local, err)
			}
			fmt.Fprintf(o.Out.Stdout, "%s leads to port %d of %s; Ctrl-C ends it\n", l.Addr(), remote, args[0])
			return forward(ctx, l, func(ctx context.Context) (io.ReadWriteCloser, error) {
				return o.Client.Exec(ctx, key, instance, pando.SessionSpec{Port: remote})
			}, func(err error) { fmt.Fprintln(o.Out.Stderr, "pando port-forward:", err) })
		},
	}
	return c
}

// hasInstance reports whether a service has an instance of a name, which may be that of an ordinal. An
// empty name means any.
func hasInstance(st pando.ServiceStatus, name pando.InstanceID) bool {
	return name == "" || slices.ContainsFunc(st.Instances, func(i pando.InstanceStatus) bool {
		return i.ID == name || i.Ordinal > 0 && string(name) == pando.OrdinalName(st.Name, i.Ordinal)
	})
}

// forwarded reads [LOCAL:]REMOTE.
func forwarded(text string) (local, remote uint16, err error) {
	first, second, both := strings.Cut(text, ":")
	if !both {
		second = first
	}
	n, err1 := strconv.ParseUint(first, 10, 16)
	m, err2 := strconv.ParseUint(second, 10, 16)
	if err1 != nil || err2 != nil || m == 0 {
		return 0, 0, cli.Usagef("%q: want [LOCAL:]REMOTE, two ports such as 8080 or 15432:5432", text)
	}
	return uint16(n), uint16(m), nil
}

// forward connects each client of a listener by a session, until ctx ends. Then it closes all
// connections and waits for them.
func forward(
	ctx context.Context, l net.Listener, begin func(context.Context) (io.ReadWriteCloser, error),
	failed func(error),
) error {
	places := make(chan struct{}, forwardsMax)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("take a connection: %w", err)
		}
		wg.Go(func() {
			defer func() { <-places }()
			defer c.Close()
			s, err := begin(ctx)
			if err == nil {
				err = carry(ctx, c.(*net.TCPConn), s)
			}
			if err != nil && ctx.Err() == nil {
				failed(err)
			}
		})
	}
}

// carry copies between a client and a session until either is gone, and closes both. The end of a
// client's bytes reaches the program, and its answer still arrives.
func carry(ctx context.Context, c *net.TCPConn, s io.ReadWriteCloser) error {
	defer context.AfterFunc(ctx, func() { s.Close(); c.Close() })()
	done := make(chan struct{})
	go func() {
		defer close(done)
		to := session.NewWriter(s)
		_, err := io.Copy(to.Stream(session.Input), c)
		if err == nil {
			err = to.Send(session.EOF, nil)
		}
		if err != nil {
			s.Close() // the client is gone
		}
	}()
	err := received(c, s)
	c.Close()
	s.Close()
	<-done
	return err
}

// received writes the output of a session until its end. A client that hangs up is no error.
func received(to io.Writer, s io.Reader) error {
	for {
		kind, b, err := session.Read(s)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("%w: the connection broke off: %w", pando.ErrUnreachable, err)
		case kind == session.Exit:
			return nil
		case kind == session.Output:
			if _, err := to.Write(b); err != nil {
				return nil
			}
		}
	}
}
