package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"pando.run/pando"
)

// Foreign is an etcd that runs without Pando, and may have keys of others. Pando uses the keys
// under pando.Root alone. The owner of that etcd compacts it, defragments it and keeps its quota.
type Foreign struct {
	Endpoints []string    // https://HOST:PORT, used one at a time, the first preferred
	TLS       *tls.Config // of the client; without ServerName each endpoint's host is expected
	Clock     pando.Clock
	// Accept returns why the records of the etcd are not of this cluster. A server calls it before it
	// opens its doors. Nil: any records are.
	Accept func(context.Context, pando.Registry) error
}

const (
	foreignWaitMax  = 3 * time.Second // for the answer of one endpoint to a check
	foreignAlertMax = 300 * time.Millisecond
	foreignLook     = 10 * time.Second // between two looks at the size of the database
	foreignAgain    = 500 * time.Millisecond
	versionMajorMin = 3
	versionMinorMin = 5
)

// foreign is the connection of a server to an etcd that is not its own.
type foreign struct {
	Foreign
	log  *slog.Logger
	size atomic.Pointer[pando.StoreFigures]
	full bool // a warning about its size was logged
}

// startForeign opens the doors to a foreign etcd, once that etcd answers. It returns an error for
// an etcd that Pando cannot use. While no endpoint answers, it waits.
func startForeign(ctx context.Context, c ServerConfig) (_ *Server, err error) {
	s := &Server{ended: make(chan error, 1), foreign: &foreign{Foreign: *c.Foreign, log: c.Log}}
	defer func() {
		if err != nil {
			s.Close()
			err = fmt.Errorf("use the etcd at %s: %w", strings.Join(c.Foreign.Endpoints, ", "), err)
		}
	}()
	if s.doors, err = c.doors(); err != nil {
		return nil, err
	}
	if err := s.foreign.await(ctx); err != nil {
		return nil, err
	}
	// The registry ends with Close: ctx bounds the start alone.
	if s.registry, err = c.Foreign.dial(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	s.registry.apart = true
	if err := s.foreign.accept(ctx, s.registry); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.guarding.Go(func() { s.foreign.follow(running, s.registry) })
	from := farReader{s.registry.client}
	rules := s.gate(running, c, from, from.keysOf)
	to := newPassage(s.registry.client.ActiveConnection())
	for _, d := range s.doors {
		d.lead(to, grpc.ChainUnaryInterceptor(rules.unary), grpc.ChainStreamInterceptor(rules.stream))
		s.answer(d)
	}
	return s, nil
}

// dial returns a registry over the foreign etcd. It leaves an endpoint that does not answer for a
// second.
func (f Foreign) dial(ctx context.Context) (*Registry, error) {
	l, err := newLine(f.Endpoints[0], f.TLS, nil)
	if err != nil {
		return nil, err
	}
	r, err := dialLine(ctx, l, abroad()...)
	if err != nil {
		return nil, err
	}
	if err := r.Use(f.Clock, f.Endpoints); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// await waits until an endpoint answers. It returns any other error of Check at once.
func (f *foreign) await(ctx context.Context) error {
	var warned time.Time
	for {
		err := f.Check(ctx)
		if err == nil || !errors.Is(err, pando.ErrUnavailable) {
			return err
		}
		if now := f.Clock.Now(); now.Sub(warned) > peersWaitLog {
			warned = now
			f.log.Warn("the server waits for the etcd of --store: without it nothing is decided",
				"error", err)
		}
		if pando.Sleep(ctx, f.Clock, foreignAgain) != nil {
			return err
		}
	}
}

// accept calls Accept until the etcd answers.
func (f *foreign) accept(ctx context.Context, r *Registry) error {
	for f.Accept != nil {
		err := f.Accept(ctx, r)
		if !errors.Is(err, pando.ErrUnavailable) || pando.Sleep(ctx, f.Clock, foreignAgain) != nil {
			return err
		}
	}
	return nil
}

// Check returns why Pando cannot use the etcd, or nil. One endpoint must answer; the error of an
// endpoint that answers and is unfit comes before errors of silent ones.
func (f Foreign) Check(ctx context.Context) error {
	if len(f.Endpoints) == 0 {
		return fmt.Errorf("%w: no endpoint of an etcd is named", pando.ErrInvalid)
	}
	var silent []error
	for _, at := range f.Endpoints {
		if err := f.valid(at); err != nil {
			return err
		}
	}
	for _, at := range f.Endpoints {
		err := f.check(ctx, at)
		if err == nil || !errors.Is(err, pando.ErrUnavailable) {
			return err
		}
		silent = append(silent, err)
	}
	return errors.Join(silent...)
}

// valid refuses an endpoint that Pando never uses.
func (f Foreign) valid(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Port() == "" || strings.Trim(u.Path, "/") != "" ||
		u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("%w: %q is no endpoint of an etcd; give one like https://192.0.2.1:2379",
			pando.ErrInvalid, endpoint)
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme == "http" && u.Hostname() != "localhost" && !ip.IsLoopback() {
		return fmt.Errorf("%w: %s sends specs and their environment in the clear; give an https endpoint",
			pando.ErrInvalid, endpoint)
	}
	return nil
}

// check checks one endpoint: its certificate, its version, and the access of this client.
func (f Foreign) check(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, foreignWaitMax)
	defer cancel()
	l, err := newLine(endpoint, f.TLS, nil)
	if err != nil {
		return err
	}
	c, err := l.connect(ctx, endpoint)
	if err == nil {
		err = alert(c)
	}
	if err != nil {
		return unreached(endpoint, err)
	}
	r, err := Dial(ctx, endpoint, f.TLS)
	if err != nil {
		return err
	}
	defer r.Close()
	is, err := pb.NewMaintenanceClient(r.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return unreached(endpoint, sentinel(ctx, err))
	}
	if !recent(is.Version) {
		return fmt.Errorf("%w: the etcd at %s is version %s, and Pando needs %d.%d or newer; upgrade it",
			pando.ErrUnsupported, endpoint, is.Version, versionMajorMin, versionMinorMin)
	}
	return r.mayUse(ctx, endpoint)
}

// alert closes a new connection and returns the server's objection to the client's certificate, if
// one arrives. It arrives after the handshake (TLS 1.3), and a write before it would lose it.
func alert(c net.Conn) error {
	defer c.Close()
	defer time.AfterFunc(foreignAlertMax, func() { c.Close() }).Stop()
	_, err := c.Read(make([]byte, 1))
	if err == nil || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// recent reports whether a version of etcd is new enough.
func recent(version string) bool {
	parts := append(strings.Split(version, "."), "")
	major, err := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err == nil && err2 == nil && (major > versionMajorMin ||
		major == versionMajorMin && minor >= versionMinorMin)
}

// unreached returns the error of an endpoint without an answer.
func unreached(endpoint string, err error) error {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch text := err.Error(); {
	case errors.As(err, &authority):
		return fmt.Errorf("%w: the certificate of the etcd at %s is of another authority than that of "+
			"--store-ca: %w", pando.ErrForbidden, endpoint, err)
	case errors.As(err, &name), errors.As(err, &invalid):
		return fmt.Errorf("%w: the certificate of the etcd at %s: %w", pando.ErrForbidden, endpoint, err)
	case strings.Contains(text, "remote error: tls:"), strings.Contains(text, "bad certificate"):
		return fmt.Errorf("%w: the etcd at %s refuses the certificate of --store-cert; give one that "+
			"its --trusted-ca-file signed: %w", pando.ErrForbidden, endpoint, err)
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%w: the etcd at %s speaks no TLS: %w", pando.ErrInvalid, endpoint, err)
	}
	return fmt.Errorf("%w: no etcd answers at %s; start it, or give its endpoints with --store: %w",
		pando.ErrUnavailable, endpoint, err)
}

// mayUse returns why Pando may not use the etcd as it does, or nil. It writes nothing: the
// condition of its transaction holds for no store.
func (r *Registry) mayUse(ctx context.Context, endpoint string) error {
	probe := string(pando.Root) + "none"
	ops := make([]clientv3.Op, batchOperationsMax)
	for n := range ops {
		ops[n] = clientv3.OpGet(probe, clientv3.WithCountOnly())
	}
	ops[0] = clientv3.OpDelete(probe)
	_, err := r.client.Txn(ctx).If(clientv3.Compare(clientv3.Version(probe), "<", 0)).Then(ops...).
		Commit()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: the etcd at %s takes too small transactions; start it with "+
			"--max-txn-ops=%d", pando.ErrUnsupported, endpoint, batchOperationsMax)
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty),
		errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("%w: the etcd at %s gives this client no access to the keys under %s; "+
			"`etcdctl role grant-permission ROLE readwrite %[3]s --prefix` gives it to the role of the "+
			"user that --store-cert names", pando.ErrForbidden, endpoint, pando.Root)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return nil // it answers, and reads work
	}
	return unreached(endpoint, sentinel(ctx, err))
}

// follow measures the etcd's database until ctx ends.
func (f *foreign) follow(ctx context.Context, r *Registry) {
	for {
		call, cancel := context.WithTimeout(ctx, foreignWaitMax)
		is, err := pb.NewMaintenanceClient(r.client.ActiveConnection()).Status(call, &pb.StatusRequest{})
		cancel()
		if err == nil {
			f.note(is)
		}
		if pando.Sleep(ctx, f.Clock, foreignLook) != nil {
			return
		}
	}
}

// note keeps the size of the database, and warns when little of its limit is left. An etcd older
// than 3.6 reports no limit.
func (f *foreign) note(is *pb.StatusResponse) {
	f.size.Store(&pando.StoreFigures{
		FileBytes: is.DbSize, UsedBytes: is.DbSizeInUse, LimitBytes: is.DbSizeQuota,
	})
	full := is.DbSizeQuota > 0 && is.DbSizeInUse > is.DbSizeQuota*7/8
	if full && !f.full {
		f.log.Warn("the etcd of --store is almost full: its owner compacts and defragments it",
			"used_bytes", is.DbSizeInUse, "limit_bytes", is.DbSizeQuota)
	}
	f.full = full
}

func (f *foreign) figures() (s pando.StoreFigures) {
	if is := f.size.Load(); is != nil {
		s = *is
	}
	return s
}
