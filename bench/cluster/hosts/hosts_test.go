//go:build bench

// Package hosts measures services on several virtual hosts. The hosts share one machine, so only
// ratios within a round count.
package hosts

import (
	"fmt"
	"slices"
	"testing"

	"pando.run/pando"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const rounds = 5

// table is the sheet of the bench. No row of it has a figure of a paper.
type table struct{ *sheet.Sheet }

func (s table) row(measure, goal, measured string, held bool) {
	s.Row(measure, goal, "", measured, held)
}

func TestHosts(t *testing.T) {
	s := table{sheet.New(t, ".")}
	t.Run("remote", s.remote)
	t.Run("link", s.link)
	t.Run("instances", s.deadInstances)
	t.Run("hosts", s.deadHosts)
	s.Publish("Services on several hosts", "requests/s, µs or ms", "--log")
}

// up makes a cluster. Its last host has the label role=last.
func up(t *testing.T, hosts int) *labtest.Pando {
	p := labtest.UpWith(t, labtest.Options{Hosts: hosts, Idle: true})
	for n, h := range p.Hosts {
		var flags []string
		if n > 0 {
			flags = p.Invitation()
		}
		if n == hosts-1 {
			flags = append(flags, "--label", "role=last")
		}
		p.Up(h, flags...)
	}
	p.Await("all hosts", func() (string, bool) {
		all, err := p.API(p.Host()).Hosts(p.Context())
		here := 0
		for _, h := range all {
			if h.State == pando.HostHere {
				here++
			}
		}
		return fmt.Sprint(here, err), here == hosts
	})
	return p
}

// remote compares an instance on another host than that of the client's route with the same program
// outside of Pando on that host.
func (s table) remote(t *testing.T) {
	p := up(t, 2)
	last := p.Hosts[1]
	web := p.Deploy(labtest.Echo("web", "place: {spread: host, only: role=last}"))
	p.Start(last, p.WithEcho())
	far := p.Lab.Hosts[1].IPv4 + ":8080"
	p.Await("the program outside of Pando", func() (string, bool) {
		out := p.Run(labtest.Client, "curl", "-sS", "--fail", "http://"+far+"/")
		return out.Text, out.Code == 0
	})
	web.AwaitPage(labtest.Client)
	dial := p.Dialer(labtest.Client)
	for _, bytes := range []int{1 << 10, 100 << 10} {
		ways := map[string]*visitors{
			"tunnel":   visit(t, dial, web.VIP+":80", bytes, 16),
			"straight": visit(t, dial, far, bytes, 16),
		}
		size := fmt.Sprintf(" %d KB", bytes>>10)
		s.interleave(ways, size)
		r := s.Ratio("tunnel"+size, "straight"+size)
		s.row("an instance on another host, by tunnel and direct return, against the same program "+
			"there without Pando:"+size+", requests/s", "≥ 0.85 ×",
			fmt.Sprintf("%.2f × (%.0f against %.0f)", r, s.Median("tunnel"+size),
				s.Median("straight"+size)), r >= 0.85)
		r = s.Ratio("tunnel p50"+size, "straight p50"+size)
		s.row("the same:"+size+", p50", "≤ 1.15 ×",
			fmt.Sprintf("%.2f × (%.0f µs against %.0f µs)", r, s.Median("tunnel p50"+size),
				s.Median("straight p50"+size)), r <= 1.15)
	}
}

// interleave measures the ways in turns, and begins each round with another one.
func (s table) interleave(ways map[string]*visitors, series string) {
	names := []string{}
	for name := range ways {
		names = append(names, name)
	}
	slices.Sort(names)
	for round := range rounds {
		for n := range names {
			name := names[(n+round)%len(names)]
			rate, p50 := ways[name].measure()
			s.Note(round, name+series, rate)
			s.Note(round, name+" p50"+series, p50)
		}
	}
}

const linkBits = 150_000_000

// link compares four instances behind links of 150 Mbit/s with HAProxy on the first host. HAProxy
// has the same program on the four hosts as its servers.
func (s table) link(t *testing.T) {
	p := up(t, 4)
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 4, max: 4}"))
	web.AwaitInstances(4)
	config := "defaults\n mode http\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n" +
		"frontend web\n bind :9000\n default_backend hosts\nbackend hosts\n balance leastconn\n"
	for n, h := range p.Lab.Hosts {
		p.Start(h.Name, p.WithEcho())
		config += fmt.Sprintf(" server h%d %s:8080\n", n, h.IPv4)
	}
	p.Start(p.Host(), "haproxy", "-db", "-f", p.Write("haproxy.cfg", config))
	front := p.Lab.Hosts[0].IPv4 + ":9000"
	p.Await("HAProxy", func() (string, bool) {
		out := p.Run(labtest.Client, "curl", "-sS", "--fail", "http://"+front+"/")
		return out.Text, out.Code == 0
	})
	for _, h := range p.Hosts {
		if err := p.Lab.Slow(h, linkBits); err != nil {
			t.Fatal(err)
		}
	}
	dial := p.Dialer(labtest.Client)
	const bytes, open = 100 << 10, 64
	s.interleave(map[string]*visitors{
		"Pando, links":   visit(t, dial, web.VIP+":80", bytes, open),
		"HAProxy, links": visit(t, dial, front, bytes, open),
	}, "")
	r := s.Ratio("Pando, links", "HAProxy, links")
	s.row("links of 150 Mbit/s, 4 hosts, 100 KB, against HAProxy on one of them: requests/s",
		"≥ 3.8 ×",
		fmt.Sprintf("%.2f × (%.0f against %.0f)", r, s.Median("Pando, links"),
			s.Median("HAProxy, links")), r >= 3.8)
	r = s.Ratio("HAProxy, links p50", "Pando, links p50")
	s.row("the same, p50 lower by", "≥ 3.5 ×", fmt.Sprintf("%.2f × (%.1f ms against %.1f ms)", r,
		s.Median("Pando, links p50")/1000, s.Median("HAProxy, links p50")/1000), r >= 3.5)
}
