package ebpf

import (
	"testing"

	"pando.run/pando"
)

// Control refuses a service beyond its limit. The tables must have the same limit.
func TestTheTablesHoldAsManyServicesAsAClusterMayHave(t *testing.T) {
	spec, err := loadSteer()
	if err != nil {
		t.Fatal(err)
	}
	for name, places := range map[string]uint32{"services": 1, "tables": 2, "service_names": 1,
		"vips": 2} {
		m, ok := spec.Maps[name]
		if !ok {
			t.Errorf("there is no map %s", name)
			continue
		}
		if m.MaxEntries != places*pando.ServicesMax {
			t.Errorf("map %s has %d places, want %d for each of %d services", name, m.MaxEntries, places,
				pando.ServicesMax)
		}
	}
}
