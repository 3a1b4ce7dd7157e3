package decide

import (
	"slices"

	"pando.run/pando"
)

// Problem returns the newest failure since the last deploy, unless the service has recovered from
// it.
func Problem(s pando.Service, decisions []pando.Decision) *pando.Decision {
	for _, d := range slices.Backward(decisions) {
		switch d.Kind {
		case pando.DecidedRollback:
			return &d
		case pando.DecidedFailed, pando.DecidedUnhealthy:
			of, known := d.Inputs["revision"]
			superseded := known && int(of) != s.Target && int(of) != s.Current
			// A service that is being removed has other waits; `why` keeps its failures.
			well := s.Phase == pando.ServiceServing || s.Phase == pando.ServiceCompleted ||
				s.Removing
			if !superseded && !well {
				return &d
			}
		case pando.DecidedDeploy:
			return nil
		}
	}
	return nil
}

// Failures counts the instances that failed since the newest deploy.
func Failures(decisions []pando.Decision) (n int) {
	for _, d := range slices.Backward(decisions) {
		switch d.Kind {
		case pando.DecidedFailed:
			n += d.Times()
		case pando.DecidedDeploy:
			return n
		}
	}
	return n
}
