// Package kernel runs Pando under the oldest kernel that it supports, in a virtual machine.
package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// oldest is the release of driver/network/features's minimum.
const oldest = "6.1"

// script serves a website with three instances. An emulated processor is slow, and so are its
// deadlines.
const script = `
set -e
case $(uname -r) in ` + oldest + `.*) ;; *) uname -r; exit 1;; esac
pando doctor
pando up || echo "the emulated processor is slow"
until pando hosts >/tmp/hosts 2>&1 && ! grep -q away /tmp/hosts; do sleep 1; done
cat >/tmp/web.yaml <<E
name: web
command: [/bin/website]
ports: ["80:8080"]
health: {ready_within: 2m}
scale: {min: 1, max: 4}
E
pando deploy /tmp/web.yaml --wait || { pando why web; tail /var/lib/pando/log/agent.log; exit 1; }
pando scale web 3 --wait
for n in $(seq 20); do curl -s -m 30 http://10.127.0.2/; done | sort | uniq -c
pando rm web --wait
pando down --purge
`

// needVM skips a test where no virtual machine can be made.
func needVM(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("packages of Debian are unpacked by root")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("qemu-system-x86_64 is not there: deploy/deps test installs it")
	}
}

// TestTheOldestKernelSteersFlowlets runs the tests of the flowlet program.
func TestTheOldestKernelSteersFlowlets(t *testing.T) {
	needVM(t)
	root := filepath.Join("..", "..")
	program := filepath.Join(t.TempDir(), "flowlet.test")
	build := exec.Command("go", "test", "-c", "-o", program, "./driver/network/flowlet")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the tests: %v\n%s", err, out)
	}
	vm := exec.Command(filepath.Join(root, "deploy", "in-kernel"), oldest, program)
	vm.Stdin = strings.NewReader("flowlet.test -test.v")
	out, err := vm.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if said := string(out); strings.Contains(said, "--- SKIP") ||
		strings.Count(said, "\n--- PASS") < 5 {
		t.Errorf("fewer than 5 tests passed, or one skipped:\n%s", said)
	}
}

func TestTheOldestKernelServesAWebsite(t *testing.T) {
	needVM(t)
	root := filepath.Join("..", "..")
	bin := labtest.Build(t, "./cmd/pando")
	site := filepath.Join(t.TempDir(), "website")
	build := exec.Command("go", "build", "-o", site, ".")
	build.Dir, build.Env = filepath.Join(root, "examples", "website"),
		append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the website: %v\n%s", err, out)
	}
	vm := exec.Command(filepath.Join(root, "deploy", "in-kernel"), oldest, "ip", "nsenter", "curl",
		bin, labtest.Build(t, "./cmd/pando-shim"), site)
	vm.Stdin, vm.Env = strings.NewReader(script), append(os.Environ(), "SECONDS_MAX=540")
	out, err := vm.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := string(out)
	if n := strings.Count(said, "Hello from web-"); n < 2 {
		t.Errorf("%d instances answered, want 2 or more lines\n%s", n, said)
	}
	for _, want := range []string{"Pando runs here", "missing  tcx", "missing  SO_PEERPIDFD"} {
		if !strings.Contains(said, want) {
			t.Errorf("the doctor does not print %q\n%s", want, said)
		}
	}
}
