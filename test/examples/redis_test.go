package examples

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// TestRedis runs a primary and two replicas on three hosts. They start in order, find each other by
// their names, and each keeps its host and its data through a crash, a rollout and a removal.
func TestRedis(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	dir := copyExample(p, "redis")
	file := filepath.Join(dir, "pando.yaml")
	cache := p.DeployFile(file)
	st := cache.AwaitInstances(3)
	at := hostsOf(st)
	if len(at) != 3 || at[1] == at[2] || at[2] == at[3] || at[1] == at[3] {
		t.Fatalf("the ordinals are on %v, want each on a host of its own", at)
	}
	for _, i := range st.Instances[1:] {
		if before := st.Instances[0]; !before.Born.Before(i.Born) {
			t.Errorf("ordinal %d was born at %s, before %s", i.Ordinal, i.Born, before.Born)
		}
	}
	cli := func(ordinal string, args ...string) string {
		t.Helper()
		return strings.TrimSpace(p.Pando(append([]string{"exec", "cache/" + ordinal, "--",
			"redis-cli", "-h", "cache-0.cache.pando"}, args...)...))
	}
	if got := cli("cache-2", "set", "word", "aspen"); got != "OK" {
		t.Fatalf("a write to the primary by its name answers %q", got)
	}
	replicated := func(ordinal string) {
		t.Helper()
		p.Await("the word on "+ordinal, func() (string, bool) {
			out := p.Run(p.Host(), p.Bin, "exec", "cache/"+ordinal, "--", "redis-cli", "get", "word")
			return out.Text, strings.TrimSpace(out.Text) == "aspen"
		})
	}
	replicated("cache-1")
	p.Run(p.Host(), p.Bin, "exec", "cache/cache-0", "--", "redis-cli", "shutdown", "nosave")
	stays(t, cache, at, "after a crash")
	replicated("cache-0")

	spec, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p.Write("redis/pando.yaml", string(spec)+"labels: {edition: second}\n")
	p.Pando("deploy", "--wait", file)
	stays(t, cache, at, "after a rollout")
	replicated("cache-2")

	p.Pando("rm", "cache", "--wait")
	p.DeployFile(file)
	stays(t, cache, at, "after a removal")
	replicated("cache-1")
}

// stays waits until all ordinals serve, and checks that each is where it was.
func stays(t *testing.T, s *labtest.Service, at map[int]pando.HostName, when string) {
	t.Helper()
	now := hostsOf(s.AwaitInstances(len(at)))
	for n, h := range at {
		if now[n] != h {
			t.Errorf("%s ordinal %d is on %s, and was on %s with its volume", when, n, now[n], h)
		}
	}
}

// hostsOf returns the host of each ordinal.
func hostsOf(st pando.ServiceStatus) map[int]pando.HostName {
	at := map[int]pando.HostName{}
	for _, i := range st.Instances {
		at[i.Ordinal] = i.Host
	}
	return at
}

// copyExample copies an example into the folder of the test, where every host sees it.
func copyExample(p *labtest.Pando, name string) string {
	p.Helper()
	dir := filepath.Join(p.Dir, name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("../../examples", name))); err != nil {
		p.Fatal(err)
	}
	return dir
}
