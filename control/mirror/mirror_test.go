package mirror

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/wall"
	"pando.run/pando/world"
)

// snapshot returns the records of a cluster of this many hosts and services.
func snapshot(t *testing.T, hosts, services int) pando.Batch {
	b := pando.Batch{Revision: 1}
	add := func(v pando.Stored) {
		value, err := world.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		b.Changes = append(b.Changes, pando.Record{Key: v.Key(), Value: value, Modified: 1})
	}
	for n := range services {
		add(pando.Service{ServiceKey: pando.DefaultService(pando.ServiceName(fmt.Sprint("s", n)))})
	}
	for n := range hosts {
		name := pando.HostName(fmt.Sprint("h", n))
		add(pando.Member{Name: name, Slot: n})
		add(pando.Host{Name: name, Slot: n})
	}
	return b
}

// The cost of a snapshot grows with its records, not with hosts times services.
func TestASnapshotOfManyHostsMarksEachServiceOnce(t *testing.T) {
	allocated := func(hosts, services int) uint64 {
		b := snapshot(t, hosts, services)
		v := New(nil, wall.Clock{}, nil, slog.New(slog.DiscardHandler), "")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v.Take(b, true)
		runtime.ReadMemStats(&after)
		if len(v.queue) != services || len(v.World.Hosts) != hosts {
			t.Fatalf("%d services are marked, %d hosts known", len(v.queue), len(v.World.Hosts))
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	const hosts, services = 250, 400
	apart := allocated(hosts, 0) + allocated(0, services)
	if both := allocated(hosts, services); both > 2*apart {
		t.Errorf("%d hosts and %d services take %d KiB, apart %d KiB", hosts, services,
			both>>10, apart>>10)
	}
}

func TestAMemberIsAwayFromTheEndOfItsLease(t *testing.T) {
	v := New(nil, wall.Clock{}, nil, slog.New(slog.DiscardHandler), "")
	v.Take(snapshot(t, 3, 0), true)
	for _, gone := range []pando.Key{pando.HostKey("h1"), pando.HostKey("stranger")} {
		v.Take(pando.Batch{Revision: 2, Changes: []pando.Record{{Key: gone, Modified: 2}}}, false)
	}
	if _, away := v.Left["h1"]; !away || len(v.Left) != 1 {
		t.Errorf("away are %v, want h1", v.Left)
	}
	back := snapshot(t, 2, 0)
	back.Revision = 3
	for n := range back.Changes {
		back.Changes[n].Modified = 3
	}
	if v.Take(back, false); len(v.Left) != 0 {
		t.Errorf("after its return away are %v", v.Left)
	}
}

// A change of a tenant wakes its services: one of them may wait for its quota or for an address.
func TestAChangeOfATenantWakesItsServices(t *testing.T) {
	m := New(nil, wall.Clock{}, nil, slog.New(slog.DiscardHandler), "")
	mine, other := pando.ServiceKey{Tenant: "acme", Name: "a"}, pando.ServiceKey{Tenant: "acm", Name: "b"}
	m.World.Committed(pando.Txn{Put: []pando.Stored{pando.Service{ServiceKey: mine},
		pando.Service{ServiceKey: other}}}, 2)
	m.touch(pando.TenantKey("acme"))
	if !m.dirty[mine] || m.dirty[other] {
		t.Errorf("marked: %v", m.dirty)
	}
}
