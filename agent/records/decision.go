package records

import (
	"context"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// Decision returns a decision of this agent about an instance.
func (r *Records) Decision(
	i pando.Instance, kind pando.DecisionKind, reason string, inputs map[string]float64,
) pando.Decision {
	now := r.clock.Now()
	if inputs == nil {
		inputs = map[string]float64{}
	}
	inputs["revision"] = float64(i.Revision)
	if i.Run != nil {
		inputs[lifecycle.Run] = float64(i.Run.Number)
	}
	return pando.Decision{
		ID: r.ids.Sequential(now), Service: i.Service, Instance: i.ID, Kind: kind,
		Reason: OneLine(reason, EvidenceBytesMax), // probes and errors quote the program
		By:     pando.Asker{Kind: pando.AskerControl, Name: "agent " + string(r.host)},
		Inputs: inputs, At: now,
	}
}

// Decide records a decision about an instance. A decision is evidence, not a step of the instance.
// If the write fails, Decide logs a warning and the instance continues.
func (r *Records) Decide(
	ctx context.Context, i pando.Instance, kind pando.DecisionKind, reason string,
	inputs map[string]float64,
) {
	d := r.Decision(i, kind, reason, inputs)
	if _, err := r.Commit(ctx, pando.Txn{Put: []pando.Stored{d}}); err != nil {
		r.log.Warn("a decision could not be recorded",
			"kind", kind, "instance", i.ID, "reason", reason, "error", err)
	}
}
