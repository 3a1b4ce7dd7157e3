package ebpf

import (
	"os"
	"strings"
	"testing"

	"pando.run/pando"
)

// Control refuses a service beyond its limit. The tables must have the same limit.
func TestTheTablesHoldAsManyServicesAsAClusterMayHave(t *testing.T) {
	spec, err := loadSteer()
	if err != nil {
		t.Fatal(err)
	}
	for name, places := range map[string]uint32{
		"services": 1, "service_names": 1, "vips": 2, "tenants": 1,
	} {
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

// The objects hold no code of one processor. The generated files must be built for arm64 too.
func TestTheProgramsAreBuiltForArm64(t *testing.T) {
	for _, file := range []string{"steer_bpfel.go", "../flowlet/flowlet_bpfel.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		constraint, _, _ := strings.Cut(string(text), "package")
		for _, machine := range []string{"amd64", "arm64"} {
			if !strings.Contains(constraint, machine) {
				t.Errorf("%s is not built for %s: %s", file, machine, constraint)
			}
		}
	}
}
