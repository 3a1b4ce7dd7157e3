package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// seen is what `pando hosts` on one host says of all.
func seen(p *labtest.Pando, from string) map[string]pando.HostStatus {
	p.Helper()
	var all []pando.HostStatus
	if err := json.Unmarshal([]byte(p.Must(from, p.Bin, "hosts", "-o", "json")), &all); err != nil {
		p.Fatal(err)
	}
	out := map[string]pando.HostStatus{}
	for _, h := range all {
		out[string(h.Name)] = h
	}
	return out
}

func awaitState(p *labtest.Pando, host string, want pando.HostState) pando.HostStatus {
	p.Helper()
	var h pando.HostStatus
	p.Await(host+" to be "+string(want), func() (string, bool) {
		h = seen(p, p.Host())[host]
		return string(h.State), h.State == want
	})
	return h
}

func has(t testing.TB, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
}

func TestWhoMayJoin(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true})
	one, two, three := p.Hosts[0], p.Hosts[1], p.Hosts[2]
	p.Up(one)
	good := p.Invitation()
	server, token := good[1], good[3]

	has(t, p.UpFails(2, two, "--join", server), "--token", "`pando token`")
	has(t, p.UpFails(3, two, "--join", server, "--token", "pando1abc"), "is no token", "`pando token`")
	forged := token[:len(token)-4] + "aaaa"
	has(t, p.UpFails(10, two, "--join", server, "--token", forged), "not one of this cluster", "`pando token`")
	var short struct{ Token string }
	if err := json.Unmarshal([]byte(p.Pando("token", "--for", "1ns", "-o", "json")), &short); err != nil {
		t.Fatal(err)
	}
	has(t, p.UpFails(10, two, "--join", server, "--token", short.Token), "the token ended at", "make a new one")
	has(t, p.UpFails(8, two, "--join", "10.126.0.3", "--token", token), "no server answers at 10.126.0.3:7401")

	p.Up(three) // a cluster of its own
	has(t, p.UpFails(10, two, "--join", "10.126.0.3", "--token", token), "another cluster's", "`pando token`")
	has(t, p.UpFails(6, three, good...), "a cluster of its own", "pando down --purge")

	next := labtest.Build(t, "./cmd/pando", "layoutnext")
	out := p.Run(two, append([]string{next, "up", "--data-dir", p.Data(two), "--host", two}, good...)...)
	if out.Code != 3 {
		t.Errorf("another layout: exit code %d", out.Code)
	}
	has(t, out.Text, "layout 2", "cluster's is 1", "`pando restart`")

	p.Up(two, good...)
	all := seen(p, two)
	if h := all[two]; len(all) != 2 || h.State != pando.HostHere || h.Slot != 1 || h.Server || !all[one].Server {
		t.Errorf("the hosts are %+v", all)
	}
	p.Up(two) // a member stays one
	has(t, p.Run(two, p.Bin, "deploy", p.Write("web.yaml", "name: web\ncommand: [sleep, infinity]\n")).Text, "server's host", "`pando hosts`")
	has(t, p.Run(two, p.Bin, "token").Text, "on another host")
	p.Down(three, "--purge")
	has(t, p.UpFails(6, three, append(good, "--host", two)...), "choose another name with --host")
	p.Down(two, "--purge")
	p.Await("the end of the lease", func() (string, bool) {
		h := seen(p, one)[two]
		return string(h.State), h.State == pando.HostAway && !h.Heard.IsZero()
	})
	p.Up(two, good...) // the name is free again, and has its slot
	if h := seen(p, one)[two]; h.Slot != 1 {
		t.Errorf("it came back as %+v", h)
	}
}
