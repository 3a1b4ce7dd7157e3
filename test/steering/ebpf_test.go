package steering

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/driver/network/ebpf"
	"pando.run/pando/lab"
)

// The tests run in network and mount namespaces of their own, so that they do not change the
// machine.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("skipped: needs root")
		os.Exit(0)
	}
	if os.Getenv(publisher) != "" {
		publishUntilKilled()
	}
	if err := lab.Alone("PANDO_TEST_ALONE"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// tcx is driver/network/ebpf as a subject.
type tcx struct{ *ebpf.Driver }

func openTCX(t *testing.T, uplinks ...string) Subject {
	t.Helper()
	return openSize(t, 1<<16, uplinks...)
}

func (s tcx) Try(at Place, l pando.Link, frame []byte, summed bool) (Outcome, error) {
	hook := ebpf.FromInstance
	switch at {
	case Outside:
		hook = ebpf.FromOutside
	case Host:
		hook = ebpf.FromHost
	}
	action, out, err := s.Driver.Try(hook, l.IfIndex, frame, summed)
	if err != nil {
		return Outcome{}, err
	}
	switch action {
	case ebpf.ActionNext:
		return Outcome{Passed, out}, nil
	case ebpf.ActionDrop:
		return Outcome{Fate: Dropped}, nil
	case ebpf.ActionRedirect:
		return Outcome{Sent, out}, nil
	}
	return Outcome{}, fmt.Errorf("a program decided %d, which means nothing", action)
}

func TestConformanceOfEBPF(t *testing.T) { Hold(t, openTCX) }

func TestStraightOfEBPF(t *testing.T) { Straight(t, openTCX) }

func TestLiveOfEBPF(t *testing.T) { Live(t, openTCX) }

// openFilters attaches the programs as a kernel before 6.6 does.
func openFilters(t *testing.T, uplinks ...string) Subject {
	t.Helper()
	d, err := ebpf.Open(ebpf.Config{
		PinDir: pins, Uplinks: uplinks, Buckets: balance.Buckets, FlowsMax: 1 << 16, Clsact: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return tcx{d}
}

func TestConformanceOfEBPFByFilters(t *testing.T) { Hold(t, openFilters) }

func TestLiveOfEBPFByFilters(t *testing.T) { Live(t, openFilters) }

func TestPurgeLeavesNothing(t *testing.T) {
	if err := openTCX(t).Purge(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Dir(pins) + "*"); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := net.InterfaceByName(ebpf.Device); err == nil {
		t.Errorf("%s is still there", ebpf.Device)
	}
}

func TestPoliciesOfEBPF(t *testing.T) { Policies(t, openTCX) }

func TestASleepingServiceOfEBPF(t *testing.T) { Sleep(t, openTCX) }
