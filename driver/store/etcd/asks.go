package etcd

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"pando.run/pando"
	"pando.run/pando/api/problem"
	"pando.run/pando/world"
)

// Asks reach control through the doors of the store. The request of the call is the transaction by
// which the agent would write the ask alone, so the gate checks both by the same rules. Control
// then writes the ask together with its answer.
const (
	askService = "pando.Control"
	askName    = "Answer"
	askMethod  = "/" + askService + "/" + askName
)

// asks passes the asks of agents to the control of this server.
type asks struct {
	control atomic.Pointer[pando.Decider] // nil until Decide
}

// Decide sets the control that answers the asks of agents. Earlier asks get ErrUnavailable.
func (s *Server) Decide(d pando.Decider) { s.asks.control.Store(&d) }

// serve adds the call to the server behind a door.
func (a *asks) serve(s *grpc.Server) {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: askService, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: askName, Handler: a.take}},
	}, a)
}

// take reads one call and passes it through the gate.
func (a *asks) take(
	_ any, ctx context.Context, decode func(any) error, guards grpc.UnaryServerInterceptor,
) (any, error) {
	q := &pb.TxnRequest{}
	if err := decode(q); err != nil {
		return nil, err
	}
	return guards(ctx, q, &grpc.UnaryServerInfo{Server: a, FullMethod: askMethod},
		func(ctx context.Context, q any) (any, error) {
			records, err := a.answer(ctx, q.(*pb.TxnRequest))
			if err != nil {
				return nil, toWire(err)
			}
			resp := &pb.RangeResponse{}
			for _, r := range records {
				resp.Kvs = append(resp.Kvs, &mvccpb.KeyValue{
					Key: []byte(r.Key), Value: r.Value, ModRevision: int64(r.Modified),
				})
			}
			return resp, nil
		})
}

// answer returns the records of the answer that the asking host may read.
func (a *asks) answer(ctx context.Context, q *pb.TxnRequest) ([]pando.Record, error) {
	by, i, err := asked(q)
	if err != nil {
		return nil, err
	}
	d := a.control.Load()
	if d == nil {
		return nil, fmt.Errorf("%w: this server has not started its control", pando.ErrUnavailable)
	}
	all, err := (*d).Answer(ctx, by, i, func() {})
	var out []pando.Record
	own := string(pando.InstancesOn(i.Service, i.Host))
	for _, r := range all {
		if r.Key == i.Key() || strings.HasPrefix(string(r.Key), own) {
			out = append(out, r)
		}
	}
	return out, err
}

// asked returns the ask of a call and the fence of the asking host.
func asked(q *pb.TxnRequest) (by pando.Fence, i pando.Intent, err error) {
	if len(q.Success) != 1 || q.Success[0].GetRequestPut() == nil {
		return by, i, fmt.Errorf("%w: an ask is one record", pando.ErrInvalid)
	}
	put := q.Success[0].GetRequestPut()
	k := pando.Key(put.Key)
	if k.Kind() != pando.KindIntent {
		return by, i, fmt.Errorf("%w: %s is no ask", pando.ErrInvalid, k)
	}
	if err := world.Decode(pando.Record{Key: k, Value: put.Value}, &i); err != nil {
		return by, i, err
	}
	by.Key = pando.LeaderKey("host-" + string(i.Host))
	fresh := true
	for _, c := range q.Compare { // the member's own, and those of the gate
		switch pando.Key(c.Key) {
		case by.Key:
			by.Created = pando.StoreRevision(c.GetCreateRevision())
		case k:
			fresh = fresh && c.Target == pb.Compare_MOD && c.GetModRevision() == 0
		}
	}
	switch {
	case !fresh: // control evaluates no conditions, and the gate's rules hold for new records only
		return by, i, fmt.Errorf("%w: %s is written already", pando.ErrConflict, k)
	case i.Key() != k || i.Verb != pando.VerbReplicate && i.Verb != pando.VerbHalt:
		return by, i, fmt.Errorf("%w: a %s at %s is no ask of an instance", pando.ErrInvalid, i.Verb, k)
	case by.Created <= 0:
		return by, i, fmt.Errorf("%w: an ask without the fence of its host", pando.ErrInvalid)
	}
	return by, i, nil
}

// askedBy returns the request of a call.
func askedBy(by pando.Fence, i pando.Intent) (*pb.TxnRequest, error) {
	value, err := world.Encode(i)
	if err != nil {
		return nil, err
	}
	put := &pb.PutRequest{Key: []byte(i.Key()), Value: value}
	return &pb.TxnRequest{
		Compare: []*pb.Compare{
			{Key: []byte(by.Key), Target: pb.Compare_CREATE, Result: pb.Compare_EQUAL,
				TargetUnion: &pb.Compare_CreateRevision{CreateRevision: int64(by.Created)}},
			{Key: []byte(i.Key()), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
				TargetUnion: &pb.Compare_ModRevision{}},
		},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}},
	}, nil
}

// toWire returns an error of control for the wire: its code, then its text.
func toWire(err error) error {
	k, _ := problem.Of(err)
	return status.Errorf(codes.Aborted, "%s: %v", k.Code, err)
}

// fromWire returns the error of a call: that of control, or that of the connection.
func fromWire(ctx context.Context, err error) error {
	if code, text, ok := strings.Cut(status.Convert(err).Message(), ": "); ok &&
		status.Code(err) == codes.Aborted {
		return problem.Error(code, text)
	}
	if status.Code(err) == codes.Unimplemented { // an earlier build
		return fmt.Errorf("%w: that server answers no asks of other hosts", pando.ErrUnsupported)
	}
	return sentinel(ctx, err)
}

// askIdleMax is the time after which an unused connection for asks closes.
const askIdleMax = time.Minute

// asking is the connection of a registry to the leading server, if that is not the server in use.
type asking struct {
	mu   sync.Mutex
	to   string // endpoint
	conn *grpc.ClientConn
}

// Ask sends an ask to the control of the server with this store endpoint. It has the contract of
// pando.Decider. ErrUnsupported: that server is of an earlier build.
func (r *Registry) Ask(
	ctx context.Context, endpoint string, by pando.Fence, i pando.Intent, sent func(),
) ([]pando.Record, error) {
	var resp *pb.RangeResponse
	q, err := askedBy(by, i)
	if err == nil {
		resp, err = r.exchange(ctx, endpoint, q, sent)
	}
	if err != nil {
		return nil, fmt.Errorf("ask control at %s: %w", endpoint, err)
	}
	var out []pando.Record
	for _, kv := range resp.Kvs {
		out = append(out, record(kv))
	}
	return out, nil
}

// exchange makes the call as a stream, because sent belongs between the request and the answer.
func (r *Registry) exchange(
	ctx context.Context, endpoint string, q *pb.TxnRequest, sent func(),
) (*pb.RangeResponse, error) {
	conn, err := r.connTo(endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{}, askMethod)
	if err != nil {
		return nil, fromWire(ctx, err)
	}
	// A failed send reports its reason with the answer.
	if s.SendMsg(q) == nil {
		sent()
	}
	resp := &pb.RangeResponse{}
	if err := s.RecvMsg(resp); err != nil {
		return nil, fromWire(ctx, err)
	}
	return resp, nil
}

// connTo returns a connection to an endpoint: the open one of this registry, or one of its own.
func (r *Registry) connTo(endpoint string) (*grpc.ClientConn, error) {
	if r.line == nil {
		return nil, fmt.Errorf("%w: the server itself asks its control", pando.ErrInvalid)
	}
	if r.At() == endpoint {
		return r.client.ActiveConnection(), nil
	}
	if err := checkEndpoint(endpoint); err != nil {
		return nil, err
	}
	r.asking.mu.Lock()
	defer r.asking.mu.Unlock()
	if r.asking.to == endpoint {
		return r.asking.conn, nil
	}
	if err := r.client.Ctx().Err(); err != nil {
		return nil, fmt.Errorf("%w: this registry is closed", pando.ErrUnavailable)
	}
	l := &line{identity: r.line.identity, from: r.line.from, all: []string{endpoint}, at: endpoint}
	conn, err := grpc.NewClient("passthrough:///leader", grpc.WithContextDialer(l.dial),
		// The line makes the handshake.
		grpc.WithTransportCredentials(insecure.NewCredentials()), quickly,
		grpc.WithIdleTimeout(askIdleMax), grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: lineSilenceMax, Timeout: lineAnswerMax,
		}))
	if err != nil {
		return nil, err
	}
	err = r.asking.close()
	r.asking.to, r.asking.conn = endpoint, conn
	return conn, err
}

// close ends the connection. The caller holds the lock.
func (a *asking) close() error {
	if a.conn == nil {
		return nil
	}
	err := a.conn.Close()
	a.conn, a.to = nil, ""
	if err != nil {
		return fmt.Errorf("close the connection for asks: %w", err)
	}
	return nil
}
