package main

import (
	"context"
	"fmt"
	"log"
	"slices"
	"time"

	"pando.run/sdk"
)

const (
	window = 100 * time.Millisecond // the load is measured over this window
	calm   = 2 * time.Second        // duration of low load before an instance leaves
	// Time for a copy to relieve this instance before it asks for the next.
	settle = 250 * time.Millisecond
)

// scaler decides when this instance asks for a copy of itself and when it leaves.
type scaler struct {
	self      *pando.Self
	site      *site
	high, low float64 // requests per second of one instance

	at       time.Time // time of the last look
	served   int64     // number of requests by then
	lowSince time.Time
	asked    time.Time
}

// look measures the load since the last call and asks for a copy if the load is too high. It
// returns true if this instance is out of rotation and has to leave.
func (s *scaler) look(ctx context.Context) bool {
	now, served := time.Now(), s.site.served.Load()
	passed := now.Sub(s.at)
	if passed < window/2 {
		return false // this process was delayed: two ticks came at once
	}
	rate := float64(served-s.served) / passed.Seconds()
	first := s.at.IsZero()
	s.at, s.served = now, served
	switch {
	case first:
		s.lowSince = now
	case rate > s.high:
		s.lowSince = now
		if now.Sub(s.asked) < settle {
			return false
		}
		s.asked = now
		_, err := s.self.Replicate(ctx, pando.Ask{
			Reason: fmt.Sprintf("%.0f requests/s > %g", rate, s.high),
			Inputs: map[string]float64{
				"requests_per_second": rate, "high": s.high, "window_seconds": passed.Seconds(),
			},
		})
		if err != nil && !refused(err) {
			log.Print("replicate: ", err)
		}
	case rate >= s.low:
		s.lowSince = now
	case now.Sub(s.lowSince) > calm:
		s.lowSince = now
		return s.youngest(ctx) && s.halt(ctx, rate)
	}
	return false
}

// youngest reports whether this instance is the first to leave.
func (s *scaler) youngest(ctx context.Context) bool {
	me, err := s.self.Me(ctx)
	if err != nil || me.InRotation <= me.Scale.Min {
		return false
	}
	last := slices.MaxFunc(me.Peers, func(a, b pando.Instance) int { return a.Born.Compare(b.Born) })
	return last.ID == s.self.Instance
}

// halt asks to get no new flows.
func (s *scaler) halt(ctx context.Context, rate float64) bool {
	err := s.self.Halt(ctx, pando.Ask{
		Reason: fmt.Sprintf("%.0f requests/s < %g for %s", rate, s.low, calm),
		Inputs: map[string]float64{"requests_per_second": rate, "low": s.low},
	})
	if err != nil && !refused(err) {
		log.Print("halt: ", err)
	}
	return err == nil
}
