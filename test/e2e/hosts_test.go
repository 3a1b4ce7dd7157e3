package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// seen returns the hosts that `pando hosts` lists on one host.
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
	has(t, p.UpFails(10, two, "--join", server, "--token", forged), "not one of this cluster",
		"`pando token`")
	var short struct{ Token string }
	err := json.Unmarshal([]byte(p.Pando("token", "--for", "1ns", "-o", "json")), &short)
	if err != nil {
		t.Fatal(err)
	}
	has(t, p.UpFails(10, two, "--join", server, "--token", short.Token), "the token ended at",
		"make a new one")
	has(t, p.UpFails(8, two, "--join", "10.126.0.3", "--token", token),
		"no server answers at 10.126.0.3:7401")

	p.Must(two, "ip", "link", "set", "eth0", "mtu", "1329")
	has(t, p.UpFails(3, two, good...), "takes packets of 1329 bytes", "needs 1330")
	p.Must(two, "ip", "link", "set", "eth0", "mtu", "1500")

	p.Up(three) // a cluster of its own
	has(t, p.UpFails(10, two, "--join", "10.126.0.3", "--token", token), "another cluster's",
		"`pando token`")
	has(t, p.UpFails(6, three, good...), "a cluster of its own", "pando down --purge")

	p.Up(two, good...)
	all := seen(p, two)
	h := all[two]
	if len(all) != 2 || h.State != pando.HostHere || h.Slot != 1 || h.Server || !all[one].Server {
		t.Errorf("the hosts are %+v", all)
	}
	p.Up(two) // a member stays one
	has(t, p.Run(two, p.Bin, "deploy", p.Write("web.yaml", "name: web\ncommand: [sleep, infinity]\n")).
		Text, "server's host", "`pando hosts`")
	has(t, p.Run(two, p.Bin, "token").Text, "`pando hosts allow "+two+" admit`")
	p.Down(three, "--purge")
	has(t, p.UpFails(6, three, append(p.Invitation(), "--host", two)...), "another key",
		"choose another name with --host", "pando hosts rm "+two)
	has(t, p.UpFails(10, three, good...), "the token was used for 1 of 1 hosts", "`pando token`")
	p.Down(two, "--purge") // it leaves the cluster
	if all := seen(p, one); len(all) != 1 {
		t.Errorf("the hosts are %+v", all)
	}
	p.Up(two, p.Invitation()...)
	if h := seen(p, one)[two]; h.Slot != 2 { // its former slot rests
		t.Errorf("it came back as %+v", h)
	}
}

// ask sends a request over TLS from a host with its membership file. It prints the status,
// "refused" or "silent".
const ask = `
import json, ssl, sys, http.client, tempfile
m = json.load(open(sys.argv[1]))
c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
f = tempfile.NamedTemporaryFile("w"); f.write(m["pair"]); f.flush(); c.load_cert_chain(f.name)
h = http.client.HTTPSConnection(sys.argv[2], context=c, timeout=10)
h.request("GET", sys.argv[3]); r = h.getresponse()
print(r.status, r.read(200).decode())
`

// An attacker may capture a host. Its credentials must end with its membership, at every door.
func TestAHostThatIsRemovedIsOut(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	one, two, three := p.Hosts[0], p.Hosts[1], p.Hosts[2]
	var lost *labtest.Service
	for _, name := range []string{"web", "shop", "blog"} { // each finds a host of its own
		s := p.Deploy(labtest.Echo(name, "scale: {min: 1, max: 4}"))
		if homeOf(t, s.AwaitInstances(1)) == two {
			lost = s
		}
	}
	stolen := p.Dir + "/stolen.json"
	p.Must(two, "cp", p.Data(two)+"/trust/member.json", stolen)
	doors := map[string]string{"10.126.0.1:7401": "/v1/hosts", "10.126.0.1:7403": "/peer/losses",
		"10.126.0.3:7403": "/peer/losses"}
	asked := func(at string) string {
		return p.Run(two, "python3", "-c", ask, stolen, at, doors[at]).Text
	}
	for at := range doors {
		has(t, asked(at), "200 ")
	}
	has(t, p.Run(one, p.Bin, "hosts", "rm", two).Text, "is here with 1 instances", "--force")
	has(t, p.Run(one, p.Bin, "hosts", "rm", one).Text, "the server of the cluster runs there")
	has(t, p.Run(one, p.Bin, "hosts", "rm", "nowhere").Text, "not found", "pando hosts")
	has(t, p.Run(three, p.Bin, "hosts", "rm", two, "--force").Text, "may not admit")
	has(t, p.Must(one, p.Bin, "hosts", "rm", two, "--force"), "is no longer a member")
	removed := time.Now()
	for at := range doors {
		p.Await(at+" to refuse it", func() (string, bool) {
			text := asked(at)
			return text, strings.HasPrefix(text, "403 ")
		})
	}
	if took := time.Since(removed); took > 10*time.Second {
		t.Errorf("its certificate counted for another %s", took)
	}
	if all := seen(p, one); len(all) != 2 {
		t.Errorf("the hosts are %+v", all)
	}
	settled(lost, 1, two)
	has(t, p.Pando("why", lost.Name), "host "+two+" was removed from the cluster")
	p.Await("its agent to give up", func() (string, bool) {
		out := p.Run(two, "grep", "-c", "was removed from the cluster", p.Data(two)+"/log/agent.log")
		return out.Text, out.Code == 0
	})
	p.Down(two, "--now", "--purge")
	p.Up(two, p.Invitation()...) // the name is free, and the slot rests
	if h := seen(p, one)[two]; h.Slot != 3 || h.State != pando.HostHere {
		t.Errorf("it came back as %+v", h)
	}
	has(t, asked("10.126.0.1:7401"), "403 ") // and the former key is no longer valid
}
