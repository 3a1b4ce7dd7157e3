package uplink

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
)

// Queues returns the queue of each device of this network namespace, by name. It asks the kernel
// twice, however many devices there are.
func Queues() (map[string]pando.LinkQueue, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the devices of this host: %w", err)
	}
	disciplines, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list the queues of this host: %w", err)
	}
	out, names := map[string]pando.LinkQueue{}, map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		q := pando.LinkQueue{}
		if a.Statistics != nil {
			q.Drops = a.Statistics.TxDropped
		}
		out[a.Name] = q
	}
	for _, d := range disciplines {
		a := d.Attrs()
		name, known := names[a.LinkIndex]
		// The root has the sum of its classes. The queue of an ingress holds no packet.
		if !known || a.Parent != netlink.HANDLE_ROOT || a.Statistics == nil ||
			a.Statistics.Queue == nil {
			continue
		}
		q := out[name]
		q.BacklogBytes += uint64(a.Statistics.Queue.Backlog)
		q.BacklogPackets += uint64(a.Statistics.Queue.Qlen)
		q.Drops += uint64(a.Statistics.Queue.Drops)
		out[name] = q
	}
	return out, nil
}
