//go:build bench

// Package react measures the time from a new score until the answer of a flow that follows it. The
// host has 1,000 services, and each gets new scores ten times a second meanwhile.
package react

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/balance/rig"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/driver/network/ebpf"
)

func TestMain(m *testing.M) { rig.Main(m) }

const (
	services = 1000
	changes  = 200 // of a round
)

// host has the steering of all services. The first one has real instances.
type host struct {
	*testing.T
	*ebpf.Driver
	stand *rig.Stand
}

func TestReact(t *testing.T) {
	out := sheet.New(t, ".")
	h := newHost(t)
	rounds, _ := sheet.Rounds(5, 0)
	strays := 0
	for round := range rounds {
		took, wrote, astray := h.round()
		slices.Sort(took)
		slices.Sort(wrote)
		out.Note(round, "write p99", wrote[len(wrote)*99/100])
		p99 := took[len(took)*99/100]
		out.Note(round, "p50", took[len(took)/2])
		out.Note(round, "p99", p99)
		strays += astray
	}
	measure := fmt.Sprintf("score change → first byte of a new flow, %d services, p99", services)
	out.Row(measure, "≤ 5 ms", "", fmt.Sprintf("%.2f ms (p50 %.2f ms)", out.Median("p99"),
		out.Median("p50")), out.Median("p99") <= 5)
	out.Row("of it, until the score is in the kernel, p99", "", "",
		fmt.Sprintf("%.2f ms", out.Median("write p99")), true)
	// Eight draws of two instances miss the better one with a chance of 1 in 256.
	out.Row("flows to the instance that the newest score excludes", "≤ 1 %", "",
		fmt.Sprintf("%d of %d", strays, rounds*changes), strays*100 <= rounds*changes)
	out.Publish("The time until a flow follows a new score", "ms")
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{T: t, stand: rig.NewStand(t, 2)}
	d, end := rig.Open(t, "react", "rout")
	t.Cleanup(end)
	h.Driver = d
	ports := []pando.Port{{Published: rig.Port, Target: rig.Port, Protocol: pando.TCP}}
	for _, b := range h.stand.Boxes {
		if err := d.Connect(t.Context(), b.Link, ports, rig.VIP, netip.Addr{}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range services {
		table := pando.SteeringTable{Service: service(n), VIP4: address(n), Ports: ports,
			By: pando.ByScore}
		for at, b := range h.stand.Boxes {
			table.Endpoints = append(table.Endpoints,
				pando.Endpoint{Instance: instance(n, at), Weight: 100, Link: b.Link})
		}
		if err := d.Publish(t.Context(), table); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func service(n int) pando.ServiceKey {
	return pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%d", n)))
}

func instance(n, at int) pando.InstanceID {
	return pando.InstanceID(fmt.Sprintf("s%d-%d", n, at))
}

func address(n int) netip.Addr {
	if n == 0 {
		return rig.VIP
	}
	return netip.AddrFrom4([4]byte{10, 127, byte(1 + n/200), byte(1 + n%200)})
}

// ranking leaves one of the two instances of a service out.
func ranking(n, best int) pando.Ranking {
	return pando.Ranking{Scores: []pando.Score{
		{Instance: instance(n, best), Value: 0.1},
		{Instance: instance(n, 1-best), Value: 1, Excluded: true},
	}}
}

// round changes the score of the first service again and again, and opens a flow after each change.
// It returns the times in milliseconds, those of the write alone, and the number of flows that did
// not follow.
func (h *host) round() (took, wrote []float64, strays int) {
	ctx, stop := context.WithCancel(h.Context())
	var others sync.WaitGroup
	others.Go(func() { h.scoreOthers(ctx) })
	for n := range changes {
		best := n % 2
		flows := h.flows(best)
		began := time.Now()
		if err := h.Score(ctx, service(0), ranking(0, best)); err != nil {
			h.Fatal(err)
		}
		wrote = append(wrote, float64(time.Since(began).Microseconds())/1000)
		if err := h.stand.Client.Inside(askOnce); err != nil {
			h.Fatal(err)
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
		if h.flows(best) != flows+1 {
			strays++
		}
	}
	stop()
	others.Wait()
	return took, wrote, strays
}

// askOnce opens a flow and waits for its first byte.
func askOnce() error {
	c, err := net.Dial("tcp", netip.AddrPortFrom(rig.VIP, rig.Port).String())
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, 1); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// scoreOthers gives every other service new scores, ten times a second.
func (h *host) scoreOthers(ctx context.Context) {
	every := time.NewTicker(pando.MeterDefault)
	defer every.Stop()
	for n := 0; ; n++ {
		for s := 1; s < services && ctx.Err() == nil; s++ {
			if err := h.Score(context.Background(), service(s), ranking(s, n%2)); err != nil {
				fmt.Fprintln(os.Stderr, "score:", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// flows returns the flows that an instance of the first service has got.
func (h *host) flows(at int) uint64 {
	all, err := h.Counters(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	for _, c := range all {
		if c.Instance == instance(0, at) {
			return c.Flows
		}
	}
	return 0
}
