package runner

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
	"pando.run/pando/spec/span"
)

// These times govern how an instance leaves.
const (
	// CountWaitMax is how long a drain waits while its flows cannot be counted. Then the instance
	// counts as drained.
	CountWaitMax = 30 * time.Second
	// DieGrace is how long a drained instance that halted itself may take to merge and die. After that
	// the agent stops it and merges its state.
	DieGrace = 30 * time.Second
	// DrainedAgain is the wait between two events drained for a program that does not die. Its
	// listener may have read the first one before the answer of its halt.
	DrainedAgain = 2 * time.Second
)

// drain waits until the last flow ends or a bound of the drain is reached.
func (r *Runner) drain(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	now := r.host.Clock.Now()
	if r.leave.ordered.IsZero() {
		r.leave.ordered = now
		if was := r.inst.Ordered; !was.IsZero() && was.Before(now) { // the agent starts again
			r.leave.ordered = was
		}
	}
	if box == nil || r.exited != nil {
		r.endDrain("the program is not there any more")
		return atOnce
	}
	if i.Warm || i.Run != nil {
		r.endDrain("it never took a flow")
		return atOnce
	}
	steered, unsteered := r.tableInForce()
	if !steered && unsteered == nil {
		return RetryWait // new flows may still come: the table wakes it
	}
	if steered && r.leave.closed.IsZero() {
		r.leave.closed = now
		r.leave.counting.CountAgain()
	}
	spent := now.Sub(r.leave.ordered)
	if r.leave.counting.Proven && r.leave.counting.Flows == 0 {
		r.endDrain(fmt.Sprintf("its last flow ended after %s", spent.Round(time.Millisecond)))
		return atOnce
	}
	r.recount(ctx, box, now)
	look := min(r.leave.counting.UntilLook(now, spent), r.reportWait(ctx, box, now))
	for _, end := range r.drainEnds(i) {
		left := end.at.Sub(now)
		if left <= 0 {
			ended := r.endedText(ctx, box)
			r.decide(ctx, pando.DecidedDrainEnd, end.why+": "+ended,
				map[string]float64{"flows": float64(r.leave.counting.Flows)})
			r.endDrain(end.why + ", " + ended)
			return atOnce
		}
		look = min(look, left)
	}
	return look
}

// recount asks for a count of the instance's flows if one is due. The number of the last count
// holds until then.
func (r *Runner) recount(ctx context.Context, box pando.Sandbox, now time.Time) {
	ends, err := r.host.Steering.Ends(ctx, r.Service, r.ID)
	if err != nil {
		ends = r.leave.counting.Ends // the sockets know
	}
	wait, prompt := r.leave.counting.UntilCount(now, ends)
	if wait > 0 || r.leave.counting.Asked {
		return
	}
	r.leave.counting.Asked = true
	r.host.Counter.Queue(flows.Ask{Instance: r.ID, Box: box,
		Answer: func(n flows.Count) { r.post(flowsCounted{n}) }}, prompt)
}

// noteCount applies the result of a count. A count from before the table without the instance
// proves nothing, because new flows came. Neither does a count of zero without that table.
func (r *Runner) noteCount(ctx context.Context, m flowsCounted) {
	now := r.host.Clock.Now()
	r.leave.counting.Note(now, m.count)
	r.leave.counting.Proven = m.count.Err == nil && !r.leave.closed.IsZero() && !m.count.Began.Before(r.leave.closed)
	if !r.leave.closed.IsZero() && m.count.Began.Before(r.leave.closed) {
		r.leave.counting.CountAgain()
	}
	err := m.count.Err
	if _, unsteered := r.tableInForce(); err == nil && m.count.Flows == 0 {
		err = unsteered
	}
	switch {
	case err == nil:
		r.leave.uncounted, r.leave.unknown = time.Time{}, nil
	case ctx.Err() != nil || !r.inst.Phase.Leaving():
	case r.leave.uncounted.IsZero():
		r.leave.uncounted = now
		r.host.Log.Warn("the flows of a draining instance cannot be counted; it is tried again",
			"instance", r.ID, "error", err)
		fallthrough
	default:
		r.leave.unknown = err
	}
}

// drainEnd is a time at which a drain ends although flows are left, with the reason.
type drainEnd struct {
	at  time.Time
	why string
}

// drainEnds returns the bounds of a drain. That of the spec runs from the moment at which this
// agent learned of the order, by its own clock: the clock of the host that gave the order may be
// off.
func (r *Runner) drainEnds(i pando.Instance) (ends []drainEnd) {
	end := func(at time.Time, format string, about ...any) {
		ends = append(ends, drainEnd{at, fmt.Sprintf(format, about...)})
	}
	if leaveBy := r.host.Agent.LeaveBy(); !leaveBy.IsZero() {
		end(leaveBy, "its host leaves")
	}
	if limit := r.spec().DrainSecondsMax; limit > 0 {
		end(r.leave.ordered.Add(pando.Seconds(limit)), "drain_max of %s was over", span.Seconds(limit))
	}
	if i.EndNow {
		end(r.leave.ordered, "an operator ended the drain")
	}
	if i.Walk && i.Halt == "" { // it did not answer, and this host wrote Since (takeOut)
		end(i.Since.Add(UnwellDrainMax), "it does not answer, and %s were over", UnwellDrainMax)
	}
	if r.leave.unknown != nil {
		end(r.leave.uncounted.Add(CountWaitMax),
			"its flows could not be counted for %s (%v)", CountWaitMax, r.leave.unknown)
	}
	return ends
}

func (r *Runner) endDrain(reason string) {
	r.become(pando.PhaseDrained, reason)
	r.sendDrained(reason)
}

// sendDrained sends the event drained.
func (r *Runner) sendDrained(reason string) {
	r.leave.said = r.host.Clock.Now()
	r.Events.Send(r.leave.said, pando.EventDrained, map[string]string{"reason": reason})
}

// awaitDeath waits for the application to merge and die. It stops the application after a grace
// period, or at once if another party took the instance out and the program reads no events. Then
// it merges the state for the instance. It repeats the event drained as long as it waits.
func (r *Runner) awaitDeath(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if box != nil && r.exited == nil && !r.leave.stopped {
		if wait := r.patience(i); wait > 0 {
			if r.host.Clock.Now().Sub(r.leave.said) >= DrainedAgain {
				r.sendDrained(i.Reason)
			}
			return min(wait, DrainedAgain)
		}
		r.stopProgram(box)
		return 0
	}
	return r.salvage(ctx, i, "merged for it after it stopped")
}

// stopProgram stops the program in a goroutine of its own, because a program that stops may still
// call its API. The message stopEnded reports the end.
func (r *Runner) stopProgram(box pando.Sandbox) {
	r.leave.stopping = true
	warm := r.inst.Warm
	r.host.Spawn(func(ctx context.Context) {
		if warm {
			if err := box.Resume(ctx); err != nil {
				r.host.Log.Warn("wake a reserve so that it can stop", "instance", r.ID, "error", err)
			}
		}
		r.post(stopEnded{box.Stop(ctx)})
	})
}

// patience returns how much longer a drained instance may take to die by itself.
func (r *Runner) patience(i pando.Instance) time.Duration {
	if !i.Walk {
		return DieGrace - r.host.Clock.Now().Sub(i.Since)
	}
	if r.Events.Listeners() == 0 {
		return 0
	}
	// It reads its events, so it has received the order. Give it the time of a stop to end by itself.
	return pando.Seconds(r.spec().StopSeconds) - r.host.Clock.Now().Sub(i.Since)
}

// clientsNamed bounds the clients that a text names.
const clientsNamed = 3

// A drain reports what it waits for after ReportAfter, and again after reportEvery or half of its
// age. Its silent clients are probed from probeAfter on. The history of the service has a report
// after NoteAfter.
const (
	ReportAfter = 2 * time.Second
	reportEvery = 10 * time.Second
	probeAfter  = 15 * time.Second
	NoteAfter   = 20 * time.Second
)

// reportWait records what the drain waits for, and has its silent clients probed. It returns the
// time until the next report.
func (r *Runner) reportWait(ctx context.Context, box pando.Sandbox, now time.Time) time.Duration {
	spent := now.Sub(r.leave.ordered)
	if spent < ReportAfter {
		return ReportAfter - spent
	}
	if now.Before(r.leave.waiting.next) {
		return r.leave.waiting.next.Sub(now)
	}
	rest := max(reportEvery, spent/2)
	r.leave.waiting.next = now.Add(rest)
	if !r.leave.counting.Proven || r.leave.counting.Flows == 0 {
		return rest
	}
	clients, err := box.Clients(ctx)
	if err == nil && spent >= probeAfter {
		err = box.ProbeClients(ctx)
	}
	if err != nil && ctx.Err() == nil {
		r.host.Log.Debug("the clients of a draining instance are not known", "instance", r.ID, "error", err)
	}
	text := r.waitText(clients)
	if r.inst.Waits != text {
		r.inst.Waits, r.inst.Ordered = text, r.leave.ordered
		r.recorder.Add(r.inst, nil)
		r.show()
	}
	if spent >= NoteAfter && !r.leave.waiting.noted {
		r.leave.waiting.noted = true
		r.decide(ctx, pando.DecidedDrainWait, text,
			map[string]float64{"flows": float64(r.leave.counting.Flows)})
	}
	return rest
}

// waitText returns what the drain waits for. clients are those with a socket, the most silent
// first.
func (r *Runner) waitText(clients []pando.Client) string {
	n, most := r.leave.counting.Flows, "without end"
	if limit := r.spec().DrainSecondsMax; limit > 0 {
		most = fmt.Sprintf("at most %s in all", span.Seconds(limit))
	}
	if len(clients) == 0 {
		return fmt.Sprintf("waits for %s without a socket, %s", flowsText(n), most)
	}
	c := clients[0]
	text := "waits for 1 connection, idle"
	if n > 1 {
		text = fmt.Sprintf("waits for %d connections, the most silent idle", n)
	}
	text = fmt.Sprintf("%s %s, of %s", text, span.Text(c.Idle.Round(time.Second)), c.Address)
	if c.Protocol == pando.UDP {
		text = fmt.Sprintf("waits for %s, one of %s", flowsText(n), c.Address)
	}
	if c.Unanswered > 1 {
		text += fmt.Sprintf(" (no answer to %d probes)", c.Unanswered)
	}
	return text + ", " + most
}

func flowsText(n int) string {
	if n == 1 {
		return "1 flow"
	}
	return fmt.Sprintf("%d flows", n)
}

// endedText names the connections that a bound of the drain ends.
func (r *Runner) endedText(ctx context.Context, box pando.Sandbox) string {
	n := r.leave.counting.Flows
	if n == 0 {
		return "no flow was ended"
	}
	text := flowsText(n) + " were ended"
	if n == 1 {
		text = "1 flow was ended"
	}
	clients, err := box.Clients(ctx)
	if err != nil || len(clients) == 0 {
		return text
	}
	var names []string
	for _, c := range clients[:min(len(clients), clientsNamed)] {
		names = append(names, c.Address.String())
	}
	if more := len(clients) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return text + ", of " + strings.Join(names, ", ")
}
