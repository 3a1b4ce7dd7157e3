// Package uplink measures the use of a host's network devices by the kernel's counters. It sends
// nothing and changes nothing.
package uplink

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
)

// Root is where the kernel lists its network devices.
const Root = "/sys/class/net"

// Use measures some devices. Its methods may be called from any goroutine.
type Use struct {
	root    string
	devices []string
	clock   pando.Clock

	mu   sync.Mutex
	at   time.Time
	last map[string][2]float64 // bytes received and sent
	use  float64
}

// New returns the use of devices below root.
func New(root string, devices []string, c pando.Clock) *Use {
	return &Use{root: root, devices: devices, clock: c, last: map[string][2]float64{}}
}

// restMin is the shortest time between two measurements. A caller in between gets the former one.
const restMin = 40 * time.Millisecond

// Busiest returns the use of the busiest device, of either direction, since the former call: 1 is
// its speed. A device of unknown speed, such as a virtual one, counts as idle.
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
		bytes := [2]float64{u.number(d, "statistics/rx_bytes"), u.number(d, "statistics/tx_bytes")}
		was, known := u.last[d]
		u.last[d] = bytes
		speed := u.number(d, "speed") * 1e6 / 8
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

// number reads one number of a device; 0 if it has none.
func (u *Use) number(device, name string) float64 {
	b, err := os.ReadFile(filepath.Join(u.root, device, name))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
	return n
}
