package runner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// runRecoverHook runs the hook recover of an instance, then waits for control's order.
func (r *Runner) runRecoverHook(
	ctx context.Context, i pando.Instance, svc pando.Service, spec pando.Spec,
) time.Duration {
	if i.Position != "" || r.start.hooking.begun {
		return 0 // an order or hookEnded wakes it
	}
	box, wait := r.makeSandbox(ctx, i, svc, spec)
	if box == nil {
		return wait
	}
	r.start.hooking = hooking{begun: true, box: box}
	r.end.left = box // an instance that ends meanwhile removes it
	r.explain("its hook recover runs: " + strings.Join(spec.Command, " "))
	limit := pando.Seconds(spec.Hooks.SecondsMax)
	r.host.Spawn(func(ctx context.Context) {
		timer, stop := r.host.Clock.After(limit)
		defer stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer:
				r.post(hookEnded{late: true})
				return
			case e, open := <-box.Events():
				if open && e.Kind != pando.SandboxExited {
					continue
				}
				if !open {
					e.Exit.Code = -1
				}
				r.post(hookEnded{exit: e.Exit})
				return
			}
		}
	})
	return 0
}

// removeHookSandbox removes the sandbox of a hook that could not be removed at its end. No other
// sandbox of the instance begins before that. It returns the wait before the next attempt, or 0.
func (r *Runner) removeHookSandbox(ctx context.Context) time.Duration {
	left := r.end.left
	if left == nil || r.start.hooking.begun {
		return 0
	}
	if err := left.Remove(ctx); err != nil {
		return r.again(ctx, "remove the sandbox of a hook", err)
	}
	r.end.left = nil
	return 0
}

// endRecoverHook takes the result of the hook recover.
func (r *Runner) endRecoverHook(ctx context.Context, m hookEnded) {
	box := r.start.hooking.box
	if r.start.hooking = (hooking{}); box == nil || r.end.left != box {
		return // the instance is on its way out
	}
	lines := box.LastLines(20)
	if err := box.Remove(ctx); err != nil {
		r.host.Log.Warn("remove the sandbox of a hook: it is tried again before the program starts",
			"instance", r.ID, "error", err)
	} else {
		r.end.left = nil
	}
	if r.inst.Phase != pando.PhasePlaced {
		return
	}
	limit := r.spec().Hooks.SecondsMax
	switch {
	case m.late:
		r.failHook(fmt.Sprintf("hook recover did not end within %s (hooks.timeout)", span.Seconds(limit)), lines)
		return
	case m.exit.Code != 0 || m.exit.Signal != "":
		r.failHook("hook recover failed: "+exitReason(m.exit), lines)
		return
	}
	p, err := positionIn(lines)
	if err != nil {
		r.failHook("hook recover ended without a position: "+err.Error(), lines)
		return
	}
	r.inst.Position = p.String()
	r.explain(fmt.Sprintf("its position is %s; it waits for the others", p))
}

// positionIn returns the position in the last line of a hook's output.
func positionIn(lines []string) (pando.Position, error) {
	for _, line := range slices.Backward(lines) {
		if text := strings.TrimSpace(line); text != "" {
			words := strings.Fields(text)
			return pando.ParsePosition(words[len(words)-1])
		}
	}
	return pando.Position{}, fmt.Errorf("%w: it printed nothing; its last line must be UUID:NUMBER",
		pando.ErrInvalid)
}

// failHook fails the instance because of its hook or a check, with their last lines as evidence.
func (r *Runner) failHook(reason string, lines []string) {
	d := r.decision(pando.DecidedFailed, reason, nil)
	d.Lines = lines
	r.becomeFor(pando.PhaseFailed, d.Reason, &d)
}

// lead records the term in which an ordinal leads. A repeated report changes nothing.
func (r *Runner) lead(term int64) {
	if r.inst.Term == term {
		return
	}
	name := pando.OrdinalName(r.Service.Name, r.inst.Ordinal)
	reason := fmt.Sprintf("%s follows, and led in term %d", name, r.inst.Term)
	if term > 0 {
		reason = fmt.Sprintf("%s leads in term %d", name, term)
	}
	r.inst.Term = term
	d := r.decision(pando.DecidedLeader, reason, map[string]float64{"term": float64(term)})
	r.recorder.Add(r.inst, &d)
	r.show()
}

// runJoinedHook runs the hook joined of an instance that is ready otherwise.
func (r *Runner) runJoinedHook(ctx context.Context, spec pando.Spec, box pando.Sandbox) error {
	if len(spec.Hooks.Joined) == 0 {
		return nil
	}
	left := r.start.deadline.Sub(r.host.Clock.Now())
	limit := max(time.Second, min(pando.Seconds(spec.Hooks.SecondsMax), left))
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := r.host.Prober.Probe(ctx, pando.Probe{
		Kind: pando.ProbeExec, Command: spec.Hooks.Joined,
	}, box, pando.Port{})
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("hook joined did not end within %s (hooks.timeout)", span.Text(limit))
	case err != nil:
		return fmt.Errorf("hook joined: %w", err)
	}
	return nil
}
