package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// A user makes a lab with one command, and the hosts are a cluster. A second lab has hosts without
// daemons.
func TestLabByHand(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("virtual hosts need root")
	}
	bin, dir := labtest.Build(t, "./cmd/pando"), filepath.Join(t.TempDir(), "lab")
	from := "/"
	pando := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, append([]string{"lab", "--dir", dir}, args...)...)
		cmd.Dir = from
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("pando lab %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	pando("up", "--hosts", "3")
	defer func() { _ = exec.Command(bin, "lab", "--dir", dir, "down").Run() }()
	list := pando("ls")
	for _, want := range []string{"host1", "host2", "host3", "client", "10.126.0.2", "server, agent"} {
		if !strings.Contains(list, want) {
			t.Errorf("ls does not name %s:\n%s", want, list)
		}
	}
	if n := strings.Count(list, "here"); n != 3 {
		t.Errorf("%d of 3 hosts are here:\n%s", n, list)
	}
	if got := pando("exec", "host2", "--", "pando", "hosts"); strings.Count(got, "here") != 3 {
		t.Errorf("the hosts that host2 lists are:\n%s", got)
	}
	// Each host has a /run of its own.
	for _, c := range []struct {
		from, there string
	}{{filepath.Dir(bin), filepath.Dir(bin)}, {"/run", "/"}} {
		from = c.from
		if got := strings.TrimSpace(pando("exec", "host1", "--", "pwd")); got != c.there {
			t.Errorf("a command called from %s runs in %s on the host, not in %s", c.from, got, c.there)
		}
	}
	disturb(t, pando)
	pando("down")

	pando("up", "--hosts", "2", "--bare")
	if got := pando("ls"); strings.Contains(got, "here") {
		t.Errorf("something runs on bare hosts:\n%s", got)
	}
	for _, host := range []string{"host1", "host2"} { // each a cluster of its own
		if got := pando("exec", host, "--", bin, "up", "--pool", "1"); !strings.Contains(got,
			"up on "+host) {
			t.Errorf("pando up on %s prints %q", host, got)
		}
		if got := pando("exec", host, "--", bin, "hosts"); !strings.Contains(got, host) ||
			strings.Count(got, "here") != 1 {
			t.Errorf("the hosts that %s lists are:\n%s", host, got)
		}
	}
	pando("exec", "host2", "--", "ping", "-c", "1", "-W", "5", "10.126.0.1")
	pando("down")
	if out, err := exec.Command(bin, "lab", "--dir", dir, "ls").CombinedOutput(); err == nil {
		t.Errorf("after down there is a lab:\n%s", out)
	}
}

// disturb puts faults in force by hand and by a scenario. A host that was killed comes back with
// its Pando.
func disturb(t *testing.T, pando func(...string) string) {
	t.Helper()
	pando("cut", "host1", "client")
	pando("slow", "host2", "--rate", "10mbit")
	pando("loss", "host3", "5%")
	list := pando("ls")
	for _, want := range []string{"fault: cut host1 client", "fault: slow host2 10mbit",
		"fault: loss host3 5%"} {
		if !strings.Contains(list, want) {
			t.Errorf("ls does not show %q:\n%s", want, list)
		}
	}
	file := filepath.Join(t.TempDir(), "faults")
	if err := os.WriteFile(file, []byte("0s heal\n1ms kill host3\n2ms boot host3 # with its Pando\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := pando("play", file), "0s heal\n1ms kill host3\n2ms boot host3\n"; got != want {
		t.Errorf("play prints %q, want %q", got, want)
	}
	if got := pando("ls"); strings.Contains(got, "fault") {
		t.Errorf("faults after heal:\n%s", got)
	}
	pando("exec", "host3", "--", "sh", "-c", "kill -0 $(cat /run/pando/agent.pid)")
	if got := pando("chaos", "--seed", "7", "--faults", "3", "--print"); strings.Count(got,
		"\n") != 7 {
		t.Errorf("chaos prints %q, want 3 faults, their ends and a heal", got)
	}
}
