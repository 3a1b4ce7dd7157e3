package move

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/supply"
	"pando.run/pando/test/failpoint"
	"pando.run/pando/world"
)

// Arrivals takes instances that come from other hosts. The program of an arrival is stopped, and
// the steering of this host finds its connections. It continues when the record of its instance is
// on this host. It is removed when that can no longer happen.
type Arrivals struct {
	host *Host
	all  map[string]*arrival // by the name of the move; the lock of the records guards all of them
}

// arrival is one move to this host.
type arrival struct {
	move   pando.Move
	taken  bool          // its program comes, or has come
	cancel func()        // ends the coming of its program; nil: it does not come yet
	files  chan error    // closed once its files are on this host, after an error if they are not
	box    pando.Sandbox // nil: not complete
	since  time.Time     // it is complete, or is expected
	nudge  chan struct{} // it may be given up
	landed chan struct{} // closed once the program runs
	runs   bool
	waited float64 // seconds between complete and landed
}

// NewArrivals returns the arrivals at a host.
func NewArrivals(h *Host) *Arrivals { return &Arrivals{host: h, all: map[string]*arrival{}} }

// Bounds of arrivals.
const (
	arrivalsMax     = 16
	arrivalWaitMax  = 5 * time.Minute // for the program of a move
	arrivalLook     = time.Second     // between two questions to the host that it leaves
	arrivalKept     = time.Minute     // after the landing, for late packets
	arrivalOrphaned = 10 * time.Minute
	tableWaitMax    = 2 * time.Second
)

// Expect implements pando.HostAgent.
func (v *Arrivals) Expect(_ context.Context, m pando.Move) error {
	if v.host.Supplier.Snapshots == nil {
		return fmt.Errorf("%w: this host takes no instance that moves; `pando doctor` there prints why",
			pando.ErrUnsupported)
	}
	v.host.Records.Lock()
	defer v.host.Records.UnlockChanged()
	if m.ID == "" || m.To.Name != v.host.Name {
		return fmt.Errorf("%w: the move %q leads to host %q", pando.ErrInvalid, m.ID, m.To.Name)
	}
	if _, twice := v.all[m.ID]; twice {
		return fmt.Errorf("%w: the move %s is on its way to host %s", pando.ErrConflict, m.ID,
			v.host.Name)
	}
	if len(v.all) >= arrivalsMax {
		return fmt.Errorf("%w: %d instances are on their way to host %s; ask again later",
			pando.ErrBusy, len(v.all), v.host.Name)
	}
	n := &arrival{move: m, files: make(chan error, 1)}
	v.add(n)
	v.host.Spawn(func(ctx context.Context) { // while the program still runs on the other host
		defer close(n.files)
		ctx, cancel := context.WithTimeout(ctx, arrivalWaitMax)
		defer cancel()
		missing, err := v.host.Supplier.MissingFiles(n.start(nil))
		if err == nil && missing.Digest != "" {
			err = v.host.Supplier.Pull(ctx, m.Instance.Service.Tenant, missing, func(string) {})
		}
		if err != nil {
			n.files <- err
		}
	})
	return nil
}

// start returns the start of the instance on this host, with its program.
func (n *arrival) start(program io.Reader) supply.Start {
	m := n.move
	m.Instance.Move = &m.MoveMark
	if program == nil {
		program = strings.NewReader("")
	}
	return supply.Start{Instance: m.Instance, Spec: m.Spec, Arrives: program,
		Service: pando.Service{VIP4: m.VIP4, VIP6: m.VIP6}}
}

// add adds an arrival.
func (v *Arrivals) add(n *arrival) {
	n.since, n.nudge, n.landed = v.host.Clock.Now(), make(chan struct{}, 1), make(chan struct{})
	v.all[n.move.ID] = n
	v.host.Agent.Rescope(v.host.Records.World, n.move.Instance.Service)
	v.host.Spawn(func(ctx context.Context) { v.tend(ctx, n) })
}

// Found adds the program that a former agent took. The caller has the lock of the records, as for
// each method that takes their world.
func (v *Arrivals) Found(_ *world.World, b pando.Sandbox, m pando.MoveMark) {
	v.add(&arrival{taken: true, box: b, move: pando.Move{MoveMark: m,
		Instance: pando.Instance{ID: b.Instance(), Service: b.Service()}}})
}

// Carry implements pando.HostAgent.
func (v *Arrivals) Carry(
	ctx context.Context, from pando.HostName, id string, program io.Reader,
) (out pando.Arrival, err error) {
	v.host.Records.Lock()
	n := v.all[id]
	known := n != nil && n.move.From == from && !n.taken
	coming, cancel := context.WithCancel(ctx)
	defer cancel()
	if known {
		n.taken, n.cancel, n.since = true, cancel, v.host.Clock.Now()
	}
	v.host.Records.Unlock()
	if !known {
		return out, fmt.Errorf("%w: no program of host %q is expected here", pando.ErrForbidden, from)
	}
	if c, ok := program.(io.Closer); ok { // it ends a read that waits for the other host
		defer context.AfterFunc(coming, func() { c.Close() })()
	}
	box, err := v.receive(coming, n, &watched{Reader: program, ctx: coming, n: n, v: v})
	if err != nil {
		v.host.Log.Warn("an instance does not come: its program was not received", "instance",
			n.move.Instance.ID, "from", from, "error", err)
		v.drop(n)
		return out, err
	}
	failpoint.Hit("move received")
	v.host.Records.Lock()
	if v.all[id] != n { // given up at this moment
		v.host.Records.Unlock()
		v.remove(context.WithoutCancel(ctx), box)
		return out, fmt.Errorf("%w: the move was given up", pando.ErrConflict)
	}
	n.box, n.since = box, v.host.Clock.Now()
	v.host.Tables.Changed(n.move.Instance.Service)
	v.host.Records.Unlock()
	ctx, cancelWait := context.WithTimeout(ctx, tableWaitMax)
	defer cancelWait()
	inForce, stop := v.host.Tables.InForce(n.move.Instance.Service)
	defer stop()
	select {
	case <-inForce:
	case <-ctx.Done():
		v.wake(n)
		return out, fmt.Errorf("%w: the table with it is not in force", pando.ErrNotReady)
	}
	l := box.Link()
	return pando.Arrival{IP4: l.IP4, IP6: l.IP6}, nil
}

// receive makes the sandbox of the program and connects it to steering. It takes the steps of every
// start.
func (v *Arrivals) receive(
	ctx context.Context, n *arrival, program io.Reader,
) (pando.Sandbox, error) {
	select {
	case err := <-n.files:
		if err != nil {
			return nil, fmt.Errorf("bring %s to host %s: %w", n.move.Spec.Files().Reference,
				v.host.Name, err)
		}
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: its files are not on host %s yet", pando.ErrNotReady, v.host.Name)
	}
	g, lacks, err := v.host.Supplier.Supply(ctx, n.start(program))
	defer func() { g.Done() }()
	switch {
	case err != nil:
		return nil, err
	case lacks.Secrets != nil:
		return nil, lacks.Secrets
	case !lacks.IsEmpty():
		return nil, fmt.Errorf("%w: host %s has no %s", pando.ErrNotReady, v.host.Name,
			lacks.Files.Reference)
	}
	box, err := g.Start(ctx)
	if err != nil {
		return nil, err
	}
	m := n.move
	v.host.Payments.Charge(box.Link(), box.Service().Tenant)
	err = v.host.Steering.Connect(ctx, box.Link(), m.Spec.Ports, m.VIP4, m.VIP6)
	if err != nil {
		v.remove(context.WithoutCancel(ctx), box)
		return nil, err
	}
	return box, nil
}

// watched notes when bytes of a program come, and ends with its context.
type watched struct {
	io.Reader
	ctx context.Context
	v   *Arrivals
	n   *arrival
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if ended := w.ctx.Err(); ended != nil {
		return 0, fmt.Errorf("%w: the move was given up", pando.ErrConflict)
	}
	w.v.host.Records.Lock()
	w.n.since = w.v.host.Clock.Now()
	w.v.host.Records.Unlock()
	return n, err
}

// drop forgets an arrival.
func (v *Arrivals) drop(n *arrival) {
	v.host.Records.Lock()
	defer v.host.Records.UnlockChanged()
	if v.all[n.move.ID] == n {
		delete(v.all, n.move.ID)
	}
	v.host.Agent.Rescope(v.host.Records.World, n.move.Instance.Service)
}

// wake lets tend look whether an arrival is given up.
func (v *Arrivals) wake(n *arrival) {
	select {
	case n.nudge <- struct{}{}:
	default:
	}
}

// Take returns the program of an instance after its record has come.
func (v *Arrivals) Take(_ *world.World, i pando.InstanceID) pando.Sandbox {
	for _, n := range v.all {
		if n.move.Instance.ID == i && n.box != nil && !n.runs {
			n.runs = true
			return n.box
		}
	}
	return nil
}

// Land reports that the program of a move runs.
func (v *Arrivals) Land(r *runner.Runner, m pando.MoveMark) {
	v.host.Records.Lock()
	if n := v.all[m.ID]; n != nil {
		n.waited = v.host.Clock.Now().Sub(n.since).Seconds()
		close(n.landed)
	}
	v.host.Records.Unlock()
	r.Events.Send(v.host.Clock.Now(), pando.EventRestored, map[string]string{"from": string(m.From)})
}

// Endpoints returns the endpoints of programs that wait here. They keep flows and get no new ones.
func (v *Arrivals) Endpoints(
	_ *world.World, s pando.ServiceKey,
) (out []pando.Endpoint) {
	for _, n := range v.all {
		if i := n.move.Instance; i.Service == s && n.box != nil && !n.runs {
			out = append(out, pando.Endpoint{Instance: i.ID, Revision: i.Revision, Link: n.box.Link()})
		}
	}
	slices.SortFunc(out, func(x, y pando.Endpoint) int {
		return cmp.Compare(x.Instance, y.Instance)
	})
	return out
}

// Expects reports whether an instance of a service is on its way here.
func (v *Arrivals) Expects(_ *world.World, s pando.ServiceKey) bool {
	for _, n := range v.all {
		if n.move.Instance.Service == s && !n.runs {
			return true
		}
	}
	return false
}

// Services returns the services of all arrivals.
func (v *Arrivals) Services(*world.World) (all []pando.ServiceKey) {
	for _, n := range v.all {
		all = append(all, n.move.Instance.Service)
	}
	return all
}

// tend removes an arrival that can no longer land, and forgets one that has landed.
func (v *Arrivals) tend(ctx context.Context, n *arrival) {
	for {
		timer, stop := v.host.Clock.After(arrivalLook)
		given := false
		select {
		case <-ctx.Done():
		case <-n.landed:
			_ = pando.Sleep(ctx, v.host.Clock, arrivalKept)
			v.drop(n)
			stop()
			return
		case <-n.nudge:
			given = true
		case <-timer:
		}
		stop()
		if ctx.Err() != nil {
			return
		}
		v.host.Records.Lock()
		box, old, known := n.box, v.host.Clock.Now().Sub(n.since), v.all[n.move.ID] == n
		runs, taken := n.runs, n.taken
		v.host.Records.Unlock()
		switch {
		case !known:
			return
		case runs:
		case box == nil && (given || old > arrivalWaitMax):
			// Nothing of it has come for long, or the other host has given it up.
			if v.drop(n); taken {
				n.cancel()
			}
			return
		case box == nil:
		case (given || v.closed(ctx, n, old)) && v.isNotOurs(ctx, n) && v.discard(ctx, n):
			return
		}
	}
}

// closed reports whether the host that an instance leaves has ended the move.
func (v *Arrivals) closed(ctx context.Context, n *arrival, age time.Duration) bool {
	v.host.Records.Lock()
	h, here := v.host.Records.World.Hosts[n.move.From]
	v.host.Records.Unlock()
	if !here {
		return age > arrivalOrphaned
	}
	ctx, cancel := context.WithTimeout(ctx, arrivalLook)
	defer cancel()
	open, err := v.host.Peers.Moving(ctx, h.V, n.move.ID)
	return err == nil && !open || err != nil && age > arrivalOrphaned
}

// isNotOurs reports whether the store has no record of the instance on this host.
func (v *Arrivals) isNotOurs(ctx context.Context, n *arrival) bool {
	k := pando.Instance{ID: n.move.Instance.ID, Service: n.move.Instance.Service,
		Host: v.host.Name}.Key()
	s, err := v.host.Registry.Snapshot(ctx, k)
	return err == nil &&
		!slices.ContainsFunc(s.Records, func(r pando.Record) bool { return r.Key == k })
}

// discard removes the program of an arrival. It returns false if its record has come meanwhile.
func (v *Arrivals) discard(ctx context.Context, n *arrival) bool {
	v.host.Records.Lock()
	if n.runs {
		v.host.Records.Unlock()
		return false
	}
	n.runs = true // no record takes it any more
	v.host.Tables.Changed(n.move.Instance.Service)
	v.host.Records.Unlock()
	v.host.Log.Info("an instance does not come: its move was given up", "instance",
		n.move.Instance.ID, "from", n.move.From)
	v.drop(n)
	v.remove(ctx, n.box)
	return true
}

// remove takes a sandbox from steering after the table without it, and removes it.
func (v *Arrivals) remove(ctx context.Context, box pando.Sandbox) {
	tried, stop := v.host.Tables.Tried(box.Service())
	select {
	case <-tried:
	case <-ctx.Done():
	}
	stop()
	v.host.Payments.Charge(box.Link(), "")
	if err := v.host.Steering.Disconnect(ctx, box.Link()); err != nil {
		v.host.Log.Warn("disconnect an instance that does not come", "instance", box.Instance(),
			"error", err)
	}
	v.host.Agent.RemoveSandbox(ctx, box)
}

// GiveUp implements pando.HostAgent.
func (v *Arrivals) GiveUp(_ context.Context, id string) error {
	v.host.Records.Lock()
	defer v.host.Records.Unlock()
	if n := v.all[id]; n != nil {
		v.wake(n)
	}
	return nil
}

// awaitLanding waits until the program of a move runs here.
func (v *Arrivals) awaitLanding(ctx context.Context, id string) (*arrival, error) {
	v.host.Records.Lock()
	n := v.all[id]
	v.host.Records.Unlock()
	if n == nil {
		return nil, fmt.Errorf("%w: the move %s is not known here", pando.ErrNotFound, id)
	}
	select {
	case <-n.landed:
		return n, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the instance does not run here yet", pando.ErrNotReady)
	}
}

// Landed implements pando.HostAgent.
func (v *Arrivals) Landed(ctx context.Context, id string) (pando.MoveStatus, error) {
	n, err := v.awaitLanding(ctx, id)
	if err != nil {
		return pando.MoveStatus{}, err
	}
	return pando.MoveStatus{Service: n.move.Instance.Service, Instance: n.move.Instance.ID,
		From: n.move.From, To: v.host.Name, StoppedSeconds: n.waited}, nil
}

// Hand implements pando.HostAgent.
func (v *Arrivals) Hand(
	ctx context.Context, from pando.HostName, id string, packets [][]byte,
) error {
	n, err := v.awaitLanding(ctx, id)
	if err != nil {
		return err
	}
	if n.move.From != from {
		return fmt.Errorf("%w: host %q is not that of the move", pando.ErrForbidden, from)
	}
	return n.box.Deliver(packets)
}
