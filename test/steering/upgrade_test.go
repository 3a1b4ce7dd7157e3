package steering

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/driver/network/ebpf"
)

// TestUpgradeToAnotherLayout moves the pinned tables to layout + 1 while connections are open,
// opened and used, after some upgrades that were killed on the way. No connection breaks, and the
// build of the old layout refuses the new pins.
func TestUpgradeToAnotherLayout(t *testing.T) {
	next := filepath.Join(t.TempDir(), "upgrade")
	if out, err := exec.Command("go", "build", "-tags", "layoutnext", "-o", next,
		"./upgrade").CombinedOutput(); err != nil {
		t.Fatalf("build it: %v\n%s", err, out)
	}
	s := newStand(t, openTCX, "a", "b")
	for name, b := range s.boxes {
		serve(t, b, name)
	}
	table := pando.SteeringTable{Service: web, VIP4: vip[0], VIP6: vip[1], Ports: webPorts,
		Endpoints: []pando.Endpoint{s.endpoint("a", 100), s.endpoint("b", 100)}}
	s.publish(t, table.Endpoints...)
	order, err := json.Marshal(map[string]any{
		"PinDir": pins, "Uplinks": []string{"out"}, "FlowsMax": 1 << 16, "Table": table,
	})
	if err != nil {
		t.Fatal(err)
	}
	crowd := gather(t, s)
	for range 5 {
		upgrade(t, next, order, time.Duration(rand.IntN(300))*time.Millisecond)
	}
	report := upgrade(t, next, order, wait)
	crowd.disperse(t)
	if report.Flows["a"] < 20 || report.Flows["b"] < 20 {
		t.Errorf("the new build has %v flows", report.Flows)
	}
	_, err = ebpf.Open(ebpf.Config{PinDir: pins, Uplinks: []string{"out"}, Buckets: balance.Buckets,
		FlowsMax: 1 << 16})
	if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), "upgrade pando") {
		t.Errorf("the build of the old layout returns: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(pins, "layout-*"))
	if err != nil || len(left) != 1 {
		t.Errorf("pinned tables: %v, %v; want those of one layout", left, err)
	}
}

// upgrade runs the new build, and kills it if it takes longer than patience.
func upgrade(
	t *testing.T, path string, order []byte, patience time.Duration,
) (r pando.SweepReport) {
	t.Helper()
	cmd := exec.Command(path)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(order), &out, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	killed.Stop()
	if err != nil {
		if patience == wait || said.Len() > 0 {
			t.Fatalf("the new build: %v\n%s", err, said.String())
		}
		return r
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// crowd uses connections all the time, and opens new ones.
type crowd struct {
	stop   chan struct{}
	done   sync.WaitGroup
	mu     sync.Mutex
	rounds int
	errs   []error
}

func gather(t *testing.T, s *stand) *crowd {
	c := &crowd{stop: make(chan struct{})}
	for six := range 2 {
		c.done.Go(func() {
			var open []*client
			was := map[*client]string{}
			defer func() {
				for _, o := range open {
					o.Close()
				}
			}()
			for n := 0; ; n++ {
				select {
				case <-c.stop:
					return
				default:
				}
				if len(open) < 100 || n%5 == 0 {
					var o *client
					err := s.outside.Inside(func() (err error) {
						o, err = dialTo(netip.AddrPortFrom(vip[six], 80))
						return err
					})
					if err != nil {
						c.note(err)
						return
					}
					open = append(open, o)
				}
				o := open[n%len(open)]
				who, err := o.ask("who")
				if err == nil && was[o] != "" && was[o] != who {
					err = errors.New("answered by another")
				}
				was[o] = who
				c.note(err)
				if err != nil {
					return
				}
			}
		})
	}
	eventually(t, "200 connections are in use",
		func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.rounds > 400 || len(c.errs) > 0 })
	return c
}

func (c *crowd) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rounds++; err != nil {
		c.errs = append(c.errs, err)
	}
}

// disperse ends the crowd. Every connection must have survived until here.
func (c *crowd) disperse(t *testing.T) {
	t.Helper()
	close(c.stop)
	c.done.Wait()
	for _, err := range c.errs {
		t.Errorf("a connection: %v", err)
	}
	t.Logf("%d requests", c.rounds)
}
