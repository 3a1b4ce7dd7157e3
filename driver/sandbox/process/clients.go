package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
	"pando.run/pando/driver/network/sockets"
)

// The probes of a silent client: the first one after probeIdle, then one per probeEvery. A client
// that answers none of probesMax is gone: after two and a half minutes.
const (
	probeIdle  = 30 * time.Second
	probeEvery = 15 * time.Second
	probesMax  = 8
)

// Clients implements pando.Sandbox.
func (b *sandbox) Clients(context.Context) ([]pando.Client, error) {
	talks, udp, err := b.talks()
	if err != nil {
		return nil, fmt.Errorf("list the clients of %s: %w", b.slot.Instance, err)
	}
	out := make([]pando.Client, 0, len(talks)+len(udp))
	for _, k := range talks {
		out = append(out, pando.Client{Address: k.Remote, Protocol: pando.TCP, Idle: k.Idle(),
			Unanswered: k.Unanswered})
	}
	for _, s := range udp {
		out = append(out, pando.Client{Address: s.Remote, Protocol: pando.UDP})
	}
	slices.SortStableFunc(out, func(x, y pando.Client) int { return cmp.Compare(y.Idle, x.Idle) })
	return out, nil
}

// talks lists the connections that Flows counts.
func (b *sandbox) talks() (tcp []sockets.Talk, udp []sockets.Socket, err error) {
	err = netspace.At(b.slot.netns(), func() error {
		if tcp, err = sockets.Talks(); err != nil {
			return err
		}
		udp, err = sockets.UDP()
		return err
	})
	tcp = slices.DeleteFunc(tcp, func(k sockets.Talk) bool { return !counts(k.Socket) })
	udp = slices.DeleteFunc(udp, func(s sockets.Socket) bool { return !counts(s) })
	return tcp, udp, err
}

// ProbeClients implements pando.Sandbox. It turns the kernel's keep-alive on in the program's own
// sockets, where the program has not done so. The kernel alone knows the sequence numbers that a
// probe needs. A connection whose descriptor no process of the sandbox has open is left out.
func (b *sandbox) ProbeClients(context.Context) error {
	talks, _, err := b.talks()
	if err != nil {
		return fmt.Errorf("probe the clients of %s: %w", b.slot.Instance, err)
	}
	wanted := map[string]bool{}
	for _, k := range talks {
		// One that speaks gets its probes once it is silent.
		if !k.Probed && k.Unanswered == 0 {
			wanted[fmt.Sprintf("socket:[%d]", k.Inode)] = true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	pids, err := b.slot.cgroup.Processes()
	errs := []error{err}
	for _, pid := range pids {
		errs = append(errs, probeSockets(pid, wanted))
	}
	return errors.Join(errs...)
}

// probeSockets turns keep-alive on in the sockets of a process that are wanted, and takes them off
// the list. A process or a descriptor that is gone is no error.
func probeSockets(pid int, wanted map[string]bool) error {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return unlessGone(err)
	}
	defer unix.Close(pidfd)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return unlessGone(err)
	}
	var errs []error
	for _, f := range files {
		link, err := os.Readlink(filepath.Join(dir, f.Name()))
		if err != nil || !strings.HasPrefix(link, "socket:") || !wanted[link] {
			continue
		}
		number, err := strconv.Atoi(f.Name())
		if err == nil {
			err = probeSocket(pidfd, number, link)
		}
		if err = unlessGone(err); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(wanted, link)
	}
	return errors.Join(errs...)
}

// probeSocket turns keep-alive on in one socket of another process, if it is still this one.
func probeSocket(pidfd, number int, link string) error {
	fd, err := unix.PidfdGetfd(pidfd, number, 0)
	if err != nil {
		return fmt.Errorf("take a socket of the program: %w", err)
	}
	defer unix.Close(fd)
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil || fmt.Sprintf("socket:[%d]", is.Ino) != link {
		return err
	}
	for _, o := range []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(probeIdle / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(probeEvery / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, probesMax},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("have a silent client probed: %w", err)
		}
	}
	return nil
}

// unlessGone drops the errors of a process or a descriptor that has ended.
func unlessGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EBADF) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
