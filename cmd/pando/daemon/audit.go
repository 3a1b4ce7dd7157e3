package daemon

import (
	"context"
	"net"

	"golang.org/x/sys/unix"

	"pando.run/pando/api"
)

// byUser adds the user at the other end of a unix socket to the context of a connection.
func byUser(ctx context.Context, c net.Conn) context.Context {
	if i, ok := c.(*impatient); ok {
		c = i.Conn
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}) != nil || err != nil {
		return ctx
	}
	return api.FromUser(ctx, cred.Uid)
}
