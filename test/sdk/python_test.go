// Package sdk runs programs that use the SDKs of other languages under the real pando, on virtual
// hosts.
package sdk

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

func TestThePythonContractHolds(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../../sdk/app/python")
	if err != nil {
		t.Fatal(err)
	}
	p := labtest.Up(t)
	s := p.Deploy(fmt.Sprintf(`name: contract
command: [/usr/bin/python3, -B, tests/contract.py]
working_dir: %s
environment: {PYTHONPATH: .}
ports: ["80:8080"]
scale: {min: 1, max: 2}
state: {hits: counter, log: append-log, tags: set}
`, root))
	first := s.Status().Instances[0].ID
	s.Await("the first instance's death", func(st pando.ServiceStatus) bool {
		return st.InRotation == 1 && len(st.Instances) == 1 && st.Instances[0].ID != first
	})
	if why := s.Why(); !strings.Contains(why, "20 hold, 0 broken") {
		t.Errorf("why does not show that all holds:\n%s", why)
	}
	if log := p.Pando("state", "log", "contract"); strings.Count(log, "\n") < 2 {
		t.Errorf("pando state log prints %s", log)
	}
}
