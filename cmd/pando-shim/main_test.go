package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Outside of a sandbox a shim refuses to run, with and without its role.
func TestAShimRunsInASandboxOnly(t *testing.T) {
	for _, args := range [][]string{nil, {"shim"}, {"shim", "{}"}, {"shim", "{}", "more"}, {"{}"}} {
		if code := run(args); code != 2 {
			t.Errorf("%q: exit code %d, want 2", args, code)
		}
	}
}

// There is a shim for each instance. Each package that it links costs every instance memory, and
// the initialisation of the store and of the commands alone would cost 3 MiB and 10 ms.
func TestAShimLinksFewPackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f",
		"{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	allowed := []string{
		"github.com/elastic/go-seccomp-bpf", "github.com/vishvananda/netlink",
		"github.com/vishvananda/netns", "golang.org/x/net/bpf", "golang.org/x/sys/unix",
		"pando.run/pando",
	}
	for _, name := range strings.Fields(string(out)) {
		if !slices.ContainsFunc(allowed, func(root string) bool {
			return name == root || strings.HasPrefix(name, root+"/")
		}) {
			t.Errorf("a shim links %s", name)
		}
	}
	for _, room := range []string{"control", "agent", "world", "driver/store/etcd", "driver/sandbox/process", "cmd/pando"} {
		if slices.Contains(strings.Fields(string(out)), "pando.run/pando/"+room) {
			t.Errorf("a shim links the room %s", room)
		}
	}
}
