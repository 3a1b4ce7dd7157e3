//go:build bench

// Package kernel measures the cost of choosing the unit of a flowlet in the kernel, with 64 units.
// It also measures the same rule in user space.
package kernel

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
)

const (
	rounds  = 9
	batches = 101
	repeats = 1000 // repeats of a batch; the batch is so short that an interrupt is rare
	object  = "../../../driver/network/flowlet/flowlet_bpfel.o"
)

// config is struct assign_config of bpf/assign.h.
type config struct {
	Gap, Pull, Stick, Crowded, Grow, GrowEvery, Window uint64
	Size, Packet, KiB, Targets                         uint32
}

// units is struct assign_units.
type units struct {
	Finish                         [64]uint64
	Accepting, Ready, Grown, Bytes uint64
}

// load returns the steering program with a gap T. With T = 0 every packet begins a flowlet.
func load(t *testing.T, gap uint64, accepting uint64) *ebpf.Collection {
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		t.Fatalf("%v: run make generate", err)
	}
	if err := spec.Variables["decide_only"].Set(uint32(1)); err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	rule := config{Gap: gap, Stick: 1 << 40, Grow: 100_000, GrowEvery: 1_000_000, Window: 1_000_000,
		Targets: 3}
	if err := c.Maps["flowlet_config"].Put(uint32(0), rule); err != nil {
		t.Fatal(err)
	}
	if err := c.Maps["flowlet_units"].Put(uint32(0), units{Accepting: accepting}); err != nil {
		t.Fatal(err)
	}
	return c
}

func empty(t *testing.T) *ebpf.Program {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// packet returns a UDP packet over IPv4 of 64 bytes.
func packet() []byte {
	frame := make([]byte, 64)
	copy(frame[12:], []byte{0x08, 0x00, 0x45})
	frame[23] = 17
	copy(frame[26:], []byte{10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 3, 4})
	return frame
}

// run returns the time of one packet in nanoseconds, as the median of short batches. A long batch
// would include the other work of the machine.
func run(t *testing.T, p *ebpf.Program) float64 {
	var took []float64
	for range batches {
		_, each, err := p.Benchmark(packet(), repeats, func() {})
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, float64(each.Nanoseconds()))
	}
	return median(took)
}

// userSpace builds the program that measures the rule in user space. It returns a function that
// runs the program once.
func userSpace(t *testing.T) func() (alone, asked float64) {
	build := exec.Command("cargo", "build", "--release", "--quiet", "-p", "pando-assign", "--example",
		"decide")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build function/assign: %v\n%s", err, out)
	}
	return func() (alone, asked float64) {
		out, err := exec.Command("../../../target/release/examples/decide").Output()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(string(out), &alone, &asked); err != nil {
			t.Fatal(err)
		}
		return alone, asked
	}
}

func TestDecision(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	nothing, known, flowlet := empty(t), load(t, 1<<60, ^uint64(0)), load(t, 0, ^uint64(0))
	inUserSpace := userSpace(t)
	var samples [5][]float64
	for range rounds {
		for i, ns := range undisturbed(t, func() []float64 {
			alone, asked := inUserSpace()
			return []float64{run(t, nothing), run(t, known.Programs["flowlet"]),
				run(t, flowlet.Programs["flowlet"]), alone, asked}
		}) {
			samples[i] = append(samples[i], ns)
		}
	}
	decided := counted(t, flowlet, 3)
	if packets := counted(t, flowlet, 0); decided < packets/100*99 {
		t.Fatalf("%d flowlets in %d packets: not every packet was a decision", decided, packets)
	}
	write(t, samples)
}

// ticks returns the ticks of all processors so far, and the ticks that the hypervisor stole
// (proc_stat(5): steal).
func ticks(t *testing.T) (all, stolen float64) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var name string
	var spent [8]float64
	if _, err := fmt.Fscan(f, &name, &spent[0], &spent[1], &spent[2], &spent[3], &spent[4], &spent[5],
		&spent[6], &spent[7]); err != nil {
		t.Fatal(err)
	}
	for _, n := range spent {
		all += n
	}
	return all, spent[7]
}

// undisturbed repeats a round if the hypervisor stole more than 4 % of the processors' time, as
// bench/steal.py does.
func undisturbed(t *testing.T, round func() []float64) []float64 {
	for deadline := time.Now().Add(5 * time.Minute); ; {
		all, stolen := ticks(t)
		samples := round()
		allThen, stolenThen := ticks(t)
		if stolenThen-stolen <= 0.04*(allThen-all) {
			return samples
		}
		if time.Now().After(deadline) {
			t.Fatal("the hypervisor steals in every round: measure when it does not")
		}
	}
}

// counted returns a counter of the program: 0 = packets, 3 = flowlets.
func counted(t *testing.T, c *ebpf.Collection, which int) (sum uint64) {
	var perCPU [][13]uint64
	if err := c.Maps["flowlet_counts"].Lookup(uint32(0), &perCPU); err != nil {
		t.Fatal(err)
	}
	for _, n := range perCPU {
		sum += n[which]
	}
	return sum
}

func median(v []float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	return sorted[len(sorted)/2]
}

func write(t *testing.T, samples [5][]float64) {
	names := []string{"empty program", "packet of a known flowlet", "packet that begins one",
		"the rule, user space", "asking user space"}
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	out := csv.NewWriter(f)
	_ = out.Write([]string{"round", "series", "value"})
	for i, name := range names {
		for round, ns := range samples[i] {
			_ = out.Write([]string{fmt.Sprint(round), name, fmt.Sprint(ns)})
		}
	}
	out.Flush()
	if err := errors.Join(out.Error(), f.Close()); err != nil {
		t.Fatal(err)
	}
	var differences, choices []float64
	for i, ns := range samples[2] {
		differences = append(differences, ns-samples[0][i])
		choices = append(choices, ns-samples[1][i])
	}
	whole, choice, alone, asked := median(differences), median(choices), median(samples[3]),
		median(samples[4])
	verdict := map[bool]string{true: "held", false: "missed"}
	publish(t,
		fmt.Sprintf("packet that begins a flowlet, 64 units, 3 targets, minus an empty program | ≤ 250 "+
			"ns | 1 µs | %.0f ns (parse, flow table and accounts included; the choice itself %.0f ns) | %s",
			whole, choice, verdict[whole <= 250]),
		fmt.Sprintf("… against asking a steering process for it | ≤ 1/4 | | 1/%.0f (%.0f ns asked over "+
			"a socket) | %s", asked/whole, asked, verdict[whole <= asked/4]),
		fmt.Sprintf("… the rule as a function call in user space, without packet, flow table and "+
			"answer | | | %.0f ns | stated", alone))
}

func publish(t *testing.T, rows ...string) {
	args := []string{"function/kernel", "--title", "SNF: deciding the unit of a flowlet", "--unit",
		"ns", "--log"}
	for _, r := range rows {
		t.Log(r)
		args = append(args, "--row", r)
	}
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
}
