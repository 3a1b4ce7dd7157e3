// Package uplink measures the use of a host's network devices by the kernel's counters. It sends
// nothing and changes nothing.
package uplink

import (
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
)

// Use measures devices of this network namespace. Its methods may be called from any goroutine.
type Use struct {
	read    func(device string) (bytes [2]float64, speed float64) // speed in bytes a second
	devices []string
	clock   pando.Clock

	mu   sync.Mutex
	at   time.Time
	last map[string][2]float64 // bytes sent and received
	use  float64
}

// New returns the use of devices. It asks the kernel by sockets, because /sys/class/net lists the
// devices of the namespace in which sysfs was mounted.
func New(devices []string, c pando.Clock) *Use {
	return &Use{read: readDevice, devices: devices, clock: c, last: map[string][2]float64{}}
}

// readDevice returns the bytes that a device has sent and received, and its speed.
func readDevice(device string) (bytes [2]float64, speed float64) {
	sent, received := Traffic(device)
	return [2]float64{float64(sent), float64(received)}, speedOf(device)
}

// restMin is the shortest time between two measurements. A caller in between gets the former one.
const restMin = 40 * time.Millisecond

// Busiest returns the use of the busiest device, of either direction, since the former call: 1 is
// its speed. A device of unknown speed, such as a bridge, counts as idle.
func (u *Use) Busiest() float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	over := now.Sub(u.at).Seconds()
	if !u.at.IsZero() && over < restMin.Seconds() {
		return u.use
	}
	use := 0.0
	for _, d := range u.devices {
		bytes, speed := u.read(d)
		was, known := u.last[d]
		u.last[d] = bytes
		if !known || speed <= 0 || over <= 0 {
			continue
		}
		for n := range bytes {
			use = max(use, min((bytes[n]-was[n])/(speed*over), 1))
		}
	}
	u.at, u.use = now, use
	return use
}

// Traffic returns the bytes that a device of this network namespace has sent and received since it
// was made. Both are 0 for a device that is gone.
func Traffic(device string) (sent, received uint64) {
	l, err := netlink.LinkByName(device)
	if err != nil || l.Attrs().Statistics == nil {
		return 0, 0
	}
	return l.Attrs().Statistics.TxBytes, l.Attrs().Statistics.RxBytes
}
