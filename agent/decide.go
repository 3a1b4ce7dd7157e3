package agent

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// decision returns a decision of this agent about an instance.
func (a *Agent) decision(
	r *runner, kind pando.DecisionKind, reason string, inputs map[string]float64,
) pando.Decision {
	return decisionOf(a, a.crews.statusOf(r).inst, kind, reason, inputs)
}

// decisionOf is decision for an instance that may have no runner.
func decisionOf(
	a *Agent, i pando.Instance, kind pando.DecisionKind, reason string, inputs map[string]float64,
) pando.Decision {
	now := a.Clock.Now()
	if inputs == nil {
		inputs = map[string]float64{}
	}
	inputs["revision"] = float64(i.Revision)
	if i.Run != nil {
		inputs[lifecycle.Run] = float64(i.Run.Number)
	}
	return pando.Decision{
		ID: a.IDs.Sequential(now), Service: i.Service, Instance: i.ID, Kind: kind,
		Reason: oneLine(reason, evidenceBytesMax), // probes and errors quote the program
		By:     pando.Asker{Kind: pando.AskerControl, Name: "agent " + string(a.Host.Name)},
		Inputs: inputs, At: now,
	}
}

// decide records a decision. A decision is evidence, not a step of the instance. If the write
// fails, decide logs a warning and the instance continues.
func (a *Agent) decide(
	ctx context.Context, r *runner, kind pando.DecisionKind, reason string,
	inputs map[string]float64,
) {
	d := a.decision(r, kind, reason, inputs)
	if _, err := a.records.commit(ctx, pando.Txn{Put: []pando.Stored{d}}); err != nil {
		a.Log.Warn("a decision could not be recorded",
			"kind", kind, "instance", r.id, "reason", reason, "error", err)
	}
}

// push merges the instance's branch and records a decision for each conflict.
func (a *Agent) push(ctx context.Context, r *runner) (pando.MergeResult, error) {
	result, err := a.branches.Push(ctx, r.service, r.id)
	a.tally.pushed(result, err)
	if err != nil {
		return result, err
	}
	for _, path := range result.Conflicts {
		a.decide(ctx, r, pando.DecidedConflict, "both versions of "+path+" were kept", nil)
	}
	return result, nil
}
