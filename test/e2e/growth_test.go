package e2e

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/store/etcd"
	"pando.run/pando/lab/labtest"
)

// counts list the traces of a deploy that a removal must take away, one shell command each. The
// logs of ended instances stay for a while: driver/sandbox/process bounds them.
var counts = map[string]string{
	"descriptors of the agent":  "ls /proc/$(cat /run/pando/agent.pid)/fd | wc -l",
	"descriptors of the server": "ls /proc/$(cat /run/pando/server.pid)/fd | wc -l",
	"threads of the agent":      "ls /proc/$(cat /run/pando/agent.pid)/task | wc -l",
	"processes":                 "pgrep -c -f 'pando(-shim)? (shim|server|agent) '",
	"pinned maps and programs":  "find /sys/fs/bpf | wc -l",
	"maps in the kernel":        "ls -l /proc/$(cat /run/pando/agent.pid)/fd | grep -c bpf-map",
	"control groups":            "find /sys/fs/cgroup -type d -path '*pando*' | wc -l",
	"interfaces":                "ip -o link | wc -l",
	"routes and rules":          "(ip route show table all; ip rule; ip -6 rule) | wc -l",
	"packet rules":              "nft list ruleset | wc -l",
	"mounts":                    "wc -l </proc/self/mountinfo",
	"files of the daemons":      "find /run/pando | wc -l",
}

// threadsSpare is the number of threads and descriptors that a runtime may keep for later.
const threadsSpare = 12

// kept are the kinds of records that outlive a service, within bounds of their own. The bill has a
// record for each tenant and day, written once a minute, so a test of a minute may meet the first.
var kept = []pando.Kind{
	pando.KindAudit, pando.KindTrim, pando.KindRest, pando.KindBill, pando.KindMark,
}

// counted returns all counts of the first host, and the numbers of records in its store.
func counted(p *labtest.Pando) map[string]int {
	p.Helper()
	out := map[string]int{}
	for name, command := range counts {
		text := p.Run(p.Host(), "sh", "-c", command).Result
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			p.Fatalf("%s: %q", name, text)
		}
		out[name] = n
	}
	r, err := etcd.Dial(p.Context(), "unix://"+p.Path(p.Host(), "/run/pando/store.sock"), nil)
	if err != nil {
		p.Fatal(err)
	}
	defer r.Close()
	s, err := r.Snapshot(p.Context(), pando.Root)
	if err != nil {
		p.Fatal(err)
	}
	for _, r := range s.Records {
		if k := r.Key.Kind(); !slices.Contains(kept, k) {
			out["records of the kind "+string(k)]++
		}
	}
	return out
}

// grown lists the counts that are larger than before.
func grown(before, now map[string]int) string {
	var out []string
	for name, n := range now {
		spare := 0
		if strings.HasPrefix(name, "threads") || strings.HasPrefix(name, "descriptors") {
			spare = threadsSpare
		}
		if n > before[name]+spare {
			out = append(out, fmt.Sprintf("%s: %d, before %d", name, n, before[name]))
		}
	}
	sort.Strings(out)
	return strings.Join(out, "; ")
}

// PANDO_DEPLOYS sets the number of deploys: 30 at the gate, 300 in `make soak`.
func TestDeploysAndRemovalsLeaveNothing(t *testing.T) {
	t.Parallel()
	deploys := 30
	if text := os.Getenv("PANDO_DEPLOYS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("PANDO_DEPLOYS: %v", err)
		}
		deploys = n
	}
	p := labtest.UpWith(t, labtest.Options{Flags: []string{"--pool", "1"}})
	cycle := func(n int) {
		name := fmt.Sprintf("web%d", n)
		web := p.Deploy(labtest.Echo(name, "scale: {min: 1, max: 3}"))
		web.Get(p.Host(), "/")
		p.Pando("rm", name, "--wait")
	}
	for n := range 5 { // the daemons reach the size with which they work
		cycle(n)
	}
	before := counted(p)
	for n := range deploys {
		cycle(n)
	}
	p.Await("nothing to be left", func() (string, bool) {
		left := grown(before, counted(p))
		return left, left == ""
	})
	now := counted(p)
	t.Logf("after %d deploys and removals: %v; before: %v", deploys, now, before)
}
