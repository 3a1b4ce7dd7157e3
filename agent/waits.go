package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// A drain reports what it waits for after reportAfter, and again after reportEvery or half of its
// age. Its silent clients are probed from probeAfter on. The history of the service has a report
// after noteAfter.
const (
	reportAfter = 2 * time.Second
	reportEvery = 10 * time.Second
	probeAfter  = 15 * time.Second
	noteAfter   = 20 * time.Second
)

// clientsNamed bounds the clients that a text names.
const clientsNamed = 3

// waiting is the report of a drain on its connections.
type waiting struct {
	next  time.Time // the next report is due
	noted bool      // in the history of the service
}

// reportWait records what the drain waits for, and has its silent clients probed. It returns the
// time until the next report.
func (r *runner) reportWait(ctx context.Context, box pando.Sandbox, now time.Time) time.Duration {
	spent := now.Sub(r.leave.ordered)
	if spent < reportAfter {
		return reportAfter - spent
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
		r.a.Log.Debug("the clients of a draining instance are not known", "instance", r.id, "error", err)
	}
	text := r.waitText(clients)
	if r.inst.Waits != text {
		r.inst.Waits, r.inst.Ordered = text, r.leave.ordered
		r.recorder.Add(r.inst, nil)
		r.show()
	}
	if spent >= noteAfter && !r.leave.waiting.noted {
		r.leave.waiting.noted = true
		r.decide(ctx, pando.DecidedDrainWait, text,
			map[string]float64{"flows": float64(r.leave.counting.Flows)})
	}
	return rest
}

// waitText returns what the drain waits for. clients are those with a socket, the most silent
// first.
func (r *runner) waitText(clients []pando.Client) string {
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
func (r *runner) endedText(ctx context.Context, box pando.Sandbox) string {
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
