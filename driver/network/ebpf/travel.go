package ebpf

import (
	"errors"
	"time"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

// travels reads the totals of connections (bpf/travel.h).
type travels struct{ objects *steerObjects }

// Path returns the experience of the connections of the instance at a link. The first call begins
// the measurement: it counts connections that the instance accepts from then on.
func (t travels) Path(ifindex int) pando.PathUse {
	var u steerPathUse
	err := t.objects.Paths.Lookup(uint32(ifindex), &u)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		_ = t.objects.Paths.Update(uint32(ifindex), u, ebpf.UpdateNoExist) // full: it is not measured
	}
	return pando.PathUse{
		RTT: time.Duration(u.RttUs) * time.Microsecond, Samples: u.Samples, Resent: u.Resent,
	}
}
