package lifecycle

import (
	"cmp"
	"fmt"
	"strings"

	"pando.run/pando"
)

// Case holds the facts from which Judge derives the phase of a service.
type Case struct {
	Removing        bool
	Left            int                 // instances with a record
	Serving, Least  int                 // instances in rotation, and the least there have to be
	Waits           string              // why no instance can start now, or ""
	Failing         string              // it fails without end: how, or ""
	Needs           string              // the services on which the target revision waits, or ""
	Done            bool                // its instances ended with 0, and none is replaced
	Current, Target int                 // revisions; Current is 0 before the first one served
	Reason          string              // of the phase so far
	After           []pando.ServiceName // leave before this service, which they need
}

// Judgement is the phase of a service with its reason.
type Judgement struct {
	Phase  pando.ServicePhase
	Reason string
	First  bool   // the target is the first revision that serves: it becomes current
	Note   string // to record once, when a service begins to wait for its home; else ""
}

// Judge returns the phase of a service. A service is serving as soon as its least number of
// instances is in rotation. A service that cannot start an instance is degraded, with the reason.
func Judge(c Case) Judgement {
	inRotation := fmt.Sprintf("%d of %d instances in rotation", c.Serving, c.Least)
	short := c.Serving < c.Least
	note := ""
	if c.Waits != "" && !strings.Contains(c.Reason, c.Waits) {
		note = "nothing is started in its place: " + c.Waits
	}
	switch {
	case c.Removing:
		reason := fmt.Sprintf("%d instances are left", c.Left)
		if len(c.After) > 0 {
			reason += fmt.Sprintf("; it waits until %s is gone, which needs it", c.After[0])
		}
		return Judgement{Phase: pando.ServiceRemoving, Reason: reason}
	case c.Done && c.Left == 0 && (c.Current == 0 || c.Current == c.Target):
		return Judgement{Phase: pando.ServiceCompleted, First: c.Current == 0,
			Reason: "its instances ended with exit code 0"}
	case c.Current == 0 && short && c.Needs != "":
		return Judgement{Phase: pando.ServiceDeploying, Reason: inRotation + ": " + c.Needs}
	case short && c.Waits != "":
		return Judgement{Phase: pando.ServiceDegraded, Reason: inRotation + ": " + c.Waits, Note: note}
	case c.Failing != "" && short && (c.Current == 0 || c.Current == c.Target):
		return Judgement{Phase: pando.ServiceFailing, Reason: inRotation + ": " + c.Failing}
	case c.Current == 0 && short:
		return Judgement{Phase: pando.ServiceDeploying, Reason: inRotation}
	case c.Current != 0 && c.Target != c.Current:
		reason := fmt.Sprintf("revision %d takes over from %d", c.Target, c.Current)
		if why := cmp.Or(c.Needs, c.Waits); why != "" {
			reason += ": " + why
		}
		return Judgement{Phase: pando.ServiceRolling, Reason: reason, Note: note}
	case short:
		return Judgement{Phase: pando.ServiceDegraded, Reason: inRotation}
	}
	return Judgement{Phase: pando.ServiceServing, First: c.Current == 0,
		Reason: fmt.Sprintf("%d in rotation", c.Serving)}
}
