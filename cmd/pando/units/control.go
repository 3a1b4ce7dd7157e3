package units

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/flowlet"
)

// status is the report of a unit (function/unit/src/status.rs) or the sum for the group.
type status struct {
	Name      string           `json:"name"`
	Tenant    string           `json:"tenant"`
	PID       int              `json:"pid"`
	Epoch     int              `json:"epoch"`
	Devices   []string         `json:"devices"`
	Limits    *limits          `json:"limits,omitempty"` // of each unit
	Seconds   float64          `json:"seconds"`
	Functions []billed         `json:"functions"`
	Fates     [][2]any         `json:"fates"`
	Lost      uint64           `json:"lost"`
	Unsent    uint64           `json:"unsent"`
	Flows     uint64           `json:"flows"`
	LatencyNS [3]uint64        `json:"latency_ns"`
	Traps     []string         `json:"traps"`
	Handover  map[string]int64 `json:"handover,omitempty"`
	Group     *members         `json:"group,omitempty"`
}

type limits struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
}

type billed struct {
	Function string `json:"function"`
	Packets  uint64 `json:"packets"`
	Bytes    uint64 `json:"bytes"`
	Fuel     uint64 `json:"fuel"`
	Trapped  uint64 `json:"trapped"`
}

// members is the part of the status that only the group has.
type members struct {
	Units     int            `json:"units"`
	Accepting int            `json:"accepting"`
	UnitBits  uint64         `json:"unit_bits"`
	Counts    Counts         `json:"counts"`
	Failure   string         `json:"failure,omitempty"` // why the newest start of a unit failed
	Steering  flowlet.Counts `json:"steering"`
}

type request struct {
	words  string
	answer chan func() []byte
	done   chan struct{} // closed when the answer has been written
}

// Free returns an error if a running unit or group has the name.
func (c Config) Free() error {
	if _, err := ask(filepath.Join(c.RunDir, c.Name, "control.sock"), "status"); err == nil {
		return fmt.Errorf("%w: a unit or group %s runs: `pando fn rm %[2]s` ends it, --name gives this one another", pando.ErrExists, c.Name)
	}
	return nil
}

func (g *Group) listen() (net.Listener, error) {
	if err := g.Free(); err != nil {
		return nil, err
	}
	directory := filepath.Join(g.RunDir, g.Name)
	path := filepath.Join(directory, "control.sock")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// serve passes requests to the group's loop. It does the slow work itself, outside the loop.
func serve(l net.Listener, asked chan<- request) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			// Connections of a unix socket support deadlines.
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			words := make([]byte, 16)
			n, err := c.Read(words)
			if err != nil {
				return
			}
			r := request{words: strings.TrimSpace(string(words[:n])), answer: make(chan func() []byte, 1), done: make(chan struct{})}
			defer close(r.done)
			select {
			case asked <- r:
				_, _ = c.Write((<-r.answer)()) // an answer that the caller does not read is lost
			case <-time.After(5 * time.Second):
			}
		}()
	}
}

// answer prepares the answer in the group's loop. It returns a function that queries the units,
// which runs outside the loop.
func (g *Group) answer(words string) func() []byte {
	if words != "status" && words != "stop" {
		return func() []byte { return []byte(`{"error":"ask for status or stop"}`) }
	}
	whole := status{
		Name: g.Name, Tenant: g.Tenant, PID: os.Getpid(), Epoch: 1, Devices: []string{g.In}, Functions: []billed{}, Traps: []string{},
		Handover: map[string]int64{}, Fates: [][2]any{}, Group: &members{UnitBits: g.UnitBits, Counts: g.counts, Units: g.serving(), Failure: g.lastFailed},
	}
	if g.Limits != (pando.Resources{}) {
		whole.Limits = &limits{g.Limits.MemoryBytes, g.Limits.CPUs}
	}
	if g.Out != "" {
		whole.Devices = append(whole.Devices, g.Out)
	}
	whole.Group.Steering, _ = g.driver.Counts() // on an error the zeroes are the best answer
	if _, accepting, err := g.driver.Demand(); err == nil {
		for ; accepting > 0; accepting &= accepting - 1 {
			whole.Group.Accepting++
		}
	}
	var names []string
	for id := range g.units {
		if p := g.units[id].process; p != nil {
			names = append(names, p.name)
		}
	}
	whole.account(&g.gone)
	return func() []byte {
		for _, name := range names {
			if s, err := ask(filepath.Join(g.RunDir, name, "control.sock"), "status"); err == nil {
				whole.add(s)
			}
		}
		text, err := json.Marshal(whole)
		if err != nil {
			return []byte(err.Error())
		}
		return text
	}
}

// add adds the status of a running unit. The latency of the group is that of its slowest unit.
func (whole *status) add(s *status) {
	whole.account(s)
	for word, count := range s.Handover {
		whole.Handover[word] += count
	}
	whole.Handover["unit"] = 0
	for n := range whole.LatencyNS {
		whole.LatencyNS[n] = max(whole.LatencyNS[n], s.LatencyNS[n])
	}
	whole.Flows += s.Flows
	whole.Seconds = max(whole.Seconds, s.Seconds)
}

// account adds the work of a unit that runs or has left.
func (whole *status) account(s *status) {
	for len(whole.Functions) < len(s.Functions) {
		whole.Functions = append(whole.Functions, billed{Function: s.Functions[len(whole.Functions)].Function})
	}
	for n, f := range s.Functions {
		sum := &whole.Functions[n]
		sum.Packets, sum.Bytes, sum.Fuel, sum.Trapped = sum.Packets+f.Packets, sum.Bytes+f.Bytes, sum.Fuel+f.Fuel, sum.Trapped+f.Trapped
	}
	for n, fate := range s.Fates {
		if len(whole.Fates) <= n {
			whole.Fates = append(whole.Fates, [2]any{fate[0], float64(0)})
		}
		count, _ := fate[1].(float64)
		before, _ := whole.Fates[n][1].(float64)
		whole.Fates[n][1] = before + count
	}
	whole.Lost, whole.Unsent = whole.Lost+s.Lost, whole.Unsent+s.Unsent
	whole.Traps = append(whole.Traps, s.Traps...)
}

func ask(path, words string) (*status, error) {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte(words)); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(c)
	if err != nil {
		return nil, err
	}
	s := &status{}
	return s, json.Unmarshal(text, s)
}
