package decide

import "pando.run/pando"

// TrialOf returns the progress of the rollout of a service. An older build began a rollout without
// such a record.
func TrialOf(svc pando.Service) pando.Trial {
	if svc.Trial == nil {
		return pando.Trial{Began: svc.Asked}
	}
	return *svc.Trial
}

// shared returns a service with a share of new flows for its canaries. Agents steer by it.
func shared(svc pando.Service, share float64) pando.Service {
	if t := TrialOf(svc); t.Share != share {
		t.Share = share
		svc.Trial = &t
	}
	return svc
}

// soaked returns a service after its canaries passed.
func soaked(svc pando.Service) pando.Service {
	t := TrialOf(svc)
	t.Soaked = true
	svc.Trial = &t
	return svc
}
