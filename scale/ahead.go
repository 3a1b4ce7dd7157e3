package scale

import (
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
)

// The forecast looks back as far as it looks ahead, within these bounds, at aheadPoints moments.
const (
	aheadMin    = 4 * time.Second
	aheadMax    = time.Minute
	aheadPoints = 32
)

// rising is the share of pairs of points in which the later one is higher. A ramp has nearly all of
// them. A step, noise and a falling load have fewer, and are not forecast.
const rising = 0.8

// trend holds the load of a service over the last window.
type trend struct{ points []reading }

// note adds the load of a moment and drops old points.
func (t *trend) note(now time.Time, load float64, window time.Duration) {
	if n := len(t.points); n > 0 && now.Sub(t.points[n-1].at) < window/aheadPoints {
		return
	}
	t.points = append(t.points, reading{now, load})
	old := 0
	for now.Sub(t.points[old].at) > window {
		old++
	}
	t.points = slices.Delete(t.points, 0, old)
}

// slope returns the growth of the load per second: the median over all pairs of points
// (Theil–Sen), so that single odd readings change nothing. ok is false without a ramp over at least
// half of the window.
func (t *trend) slope(window time.Duration) (perSecond float64, ok bool) {
	n := len(t.points)
	if n < aheadPoints/4 || t.points[n-1].at.Sub(t.points[0].at) < window/2 {
		return 0, false
	}
	slopes := make([]float64, 0, n*(n-1)/2)
	up := 0
	for a := range t.points {
		for _, b := range t.points[a+1:] {
			s := (b.total - t.points[a].total) / b.at.Sub(t.points[a].at).Seconds()
			if slopes = append(slopes, s); s > 0 {
				up++
			}
		}
	}
	if float64(up) < rising*float64(len(slopes)) {
		return 0, false
	}
	slices.Sort(slopes)
	return slopes[len(slopes)/2], true
}

// expect returns the load for which there should be instances now: the present load, or the
// forecast of a ramp for the time when an instance that starts now serves. why is "" without a
// forecast. A service that flaps gets none.
func (p *Policy) expect(s pando.Scale, now time.Time, load float64) (most float64, why string) {
	if s.AheadSeconds == 0 {
		return load, ""
	}
	ahead := pando.Seconds(s.AheadSeconds)
	window := min(max(ahead, aheadMin), aheadMax)
	p.trend.note(now, load, window)
	slope, ok := p.trend.slope(window)
	if !ok || p.pace.flapped(now) >= flapsMax {
		return load, ""
	}
	most = load + slope*s.AheadSeconds
	return most, fmt.Sprintf("; forecast %.4g in %s: it grows by %.3g a second", most, ahead, slope)
}
