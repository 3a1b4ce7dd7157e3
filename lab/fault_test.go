package lab

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando/driver/clock"
)

// reaches reports whether a ping from one member to another is answered.
func reaches(t *testing.T, l *Lab, from, to string) bool {
	t.Helper()
	h, err := l.member(to)
	if err != nil {
		t.Fatal(err)
	}
	// The first ping may wait for an answer of ARP.
	cmd, err := l.Exec(t.Context(), from, "ping", "-c", "1", "-w", "3", h.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	return cmd.Run() == nil
}

func inForce(t *testing.T, l *Lab, want ...string) {
	t.Helper()
	all, err := l.Faults()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range all {
		got = append(got, f.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("faults in force: %q, want %q", got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestACutSeparatesTwoMembersOnly(t *testing.T) {
	l, _ := small(t, "cut")
	must(t, l.Cut("cut1", "cut2"))
	must(t, l.Cut("cut2", "cut1")) // the same cut
	inForce(t, l, "cut cut2 cut1")
	if reaches(t, l, "cut1", "cut2") || reaches(t, l, "cut2", "cut1") {
		t.Error("a ping crosses the cut")
	}
	if !reaches(t, l, "client", "cut1") || !reaches(t, l, "client", "cut2") {
		t.Error("the client does not reach both hosts")
	}
	must(t, l.Heal("client"))
	inForce(t, l, "cut cut2 cut1")
	must(t, l.Heal("cut1"))
	inForce(t, l)
	if !reaches(t, l, "cut1", "cut2") {
		t.Error("the cut is healed, and no ping crosses it")
	}
}

func TestABlockDropsOneDirection(t *testing.T) {
	l, _ := small(t, "block")
	must(t, l.Block("block1", "block2"))
	must(t, l.Block("block2", "block1")) // another one
	must(t, l.Block("block2", "block1"))
	inForce(t, l, "block block1 block2", "block block2 block1")
	must(t, l.Heal("block1", "block2"))
	if !reaches(t, l, "block2", "block1") { // and each knows the other's MAC
		t.Fatal("nothing is blocked, and no ping arrives")
	}
	must(t, l.Block("block1", "block2"))
	before := echoes(t, l, "block1")
	if reaches(t, l, "block2", "block1") {
		t.Error("the answer to a ping crosses the block")
	}
	if echoes(t, l, "block1") == before {
		t.Error("the ping itself is blocked too")
	}
}

// echoes returns the number of pings that arrived at a member.
func echoes(t *testing.T, l *Lab, member string) string {
	t.Helper()
	cmd, err := l.Exec(t.Context(), member, "nstat", "-asz", "IcmpInEchos")
	must(t, err)
	out, err := cmd.Output()
	must(t, err)
	return strings.Join(strings.Fields(string(out)), " ")
}

func TestLossAndRateAreInForceUntilHealed(t *testing.T) {
	l, _ := small(t, "bad")
	must(t, l.Lose("bad1", 0.05))
	must(t, l.Lose("bad1", 1))
	must(t, l.Slow("bad2", 10e6))
	must(t, l.Slow("bad2", 2e6))
	inForce(t, l, "loss bad1 100%", "slow bad2 2mbit")
	if reaches(t, l, "client", "bad1") {
		t.Error("a ping reaches a host that loses all frames")
	}
	// A burst of 64 KB passes at once. The packets behind it take a quarter of a second each.
	said := output(t, l, "client", "ping", "-q", "-c", "4", "-i", "0.1", "-s", "60000", "-w", "60",
		"10.126.0.2")
	_, figures, _ := strings.Cut(said, "mdev = ")
	longest, err := strconv.ParseFloat(append(strings.Split(figures, "/"), "", "", "")[2], 64)
	if err != nil || longest < 150 {
		t.Errorf("60 KB on a link of 2 Mbit/s took at most %v ms (%v):\n%s", longest, err, said)
	}
	must(t, l.Heal())
	inForce(t, l)
	if !reaches(t, l, "client", "bad1") {
		t.Error("the host is healed and does not answer")
	}
}

func TestAPausedHostAnswersNothingAndGoesOn(t *testing.T) {
	l, _ := small(t, "nap")
	self, err := os.Executable()
	must(t, err)
	serve(t.Context(), t, l, "nap1", self)
	must(t, l.Pause("nap1"))
	must(t, l.Pause("nap1"))
	inForce(t, l, "pause nap1")
	ask := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		h := l.Client
		return exec.CommandContext(ctx, "nsenter", "--target", pidText(h), "--net", "--", self, "dial",
			"10.126.0.1:7000").Run()
	}
	if ask(300*time.Millisecond) == nil {
		t.Error("a paused host answered")
	}
	must(t, l.Resume("nap1"))
	must(t, l.Resume("nap1"))
	if err := ask(time.Minute); err != nil {
		t.Errorf("a resumed host does not answer: %v", err)
	}
	must(t, l.Pause("nap1"))
	must(t, l.Kill("nap1"))
	inForce(t, l)
	if err := l.Pause("nap1"); err == nil || !strings.Contains(err.Error(), "boot it first") {
		t.Errorf("a pause of a dead host: %v", err)
	}
}

func TestABootedHostHasItsAddressAndFiles(t *testing.T) {
	l, dir := small(t, "boot")
	output(t, l, "boot1", "sh", "-c", "echo kept >/var/lib/pando/file; echo lost >/run/file")
	if !reaches(t, l, "boot2", "boot1") {
		t.Fatal("the hosts do not reach each other")
	}
	if err := l.Boot(t.Context(), "boot1"); err == nil || !strings.Contains(err.Error(), "it is up") {
		t.Errorf("a boot of a live host: %v", err)
	}
	must(t, l.Kill("boot1"))
	must(t, l.Boot(t.Context(), "boot1"))
	if got := output(t, l, "boot1", "sh", "-c", "cat /var/lib/pando/file; ls /run"); got != "kept" {
		t.Errorf("the booted host has %q", got)
	}
	if !reaches(t, l, "boot2", "boot1") || !reaches(t, l, "boot1", "boot2") {
		t.Error("the booted host is not reached by its former address")
	}
	again, err := Open(dir)
	must(t, err)
	if len(again.List()) != 3 {
		t.Errorf("the record has %d live members, want 3", len(again.List()))
	}
}

func TestAScenarioIsPlayedInItsOrder(t *testing.T) {
	l, _ := small(t, "play")
	steps, err := ReadScenario(strings.NewReader(`
		# two faults at once, and their end
		0s   cut play1 play2
		5ms  slow play1 1gbit
		5ms  kill play2
		8ms  boot play2
		9ms  heal
	`))
	must(t, err)
	var done []string
	must(t, Play(t.Context(), clock.Clock{}, steps, func(ctx context.Context, s Step) error {
		done = append(done, s.String())
		return l.Do(ctx, s)
	}))
	want := "0s cut play1 play2|5ms slow play1 1gbit|5ms kill play2|8ms boot play2|9ms heal"
	if got := strings.Join(done, "|"); got != want {
		t.Errorf("played %q, want %q", got, want)
	}
	inForce(t, l)
}
