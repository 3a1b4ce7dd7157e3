package decide

import (
	"fmt"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// Fits says of each host whether it takes the next instance, and why not.
func (d *Draft) Fits() []pando.HostFit {
	return lifecycle.Explain(d.candidates(), d.wish(d.nextSpec(), d.home(), nil), d.waits())
}

// Progress fills in the counts and the next step of a rollout.
func (d *Draft) Progress(out *pando.RolloutStatus) {
	stage := d.survey()
	out.Wanted = d.svc.Rolling
	out.Old, out.New, out.Healthy = stage.Counts()
	switch m := stage.Next(); {
	case m.Pass:
		out.Next = "continue: " + m.Reason
	case m.Start:
		out.Next = fmt.Sprintf("start one of revision %d: %s", m.Revision(d.svc), m.Reason)
		if why := d.waits(); why != "" {
			out.Next = why
		}
	case m.Drain != "":
		out.Next = fmt.Sprintf("drain %s: %s", m.Drain, m.Reason)
	default:
		out.Next = m.Reason
	}
}
