package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/access"
	"pando.run/pando/api/octavia"
	"pando.run/pando/lab/labtest"
)

// curl is a client of Octavia with a token of the tenant acme, on the client's machine. It trusts
// the authority of the cluster alone.
type curl struct {
	*labtest.Pando
	token, authority string
}

// openStack returns a client of a new cluster.
func openStack(p *labtest.Pando) curl {
	p.Helper()
	var is access.IssuedToken
	out := p.Pando("tenant", "token", "add", "acme", "lb", "--may", "deploy,host", "-o", "json")
	if err := json.Unmarshal([]byte(out), &is); err != nil {
		p.Fatal(err)
	}
	h := p.Hosts[0]
	authority := p.Must(h, "openssl", "x509", "-in", filepath.Join(p.Data(h), "trust/authority.pem"))
	return curl{p, is.Token, p.Write("authority.crt", authority)}
}

// send sends a request and returns the body of the answer.
func (c curl) send(method, path, body string) string {
	c.Helper()
	return c.Must(labtest.Client, "curl", "-sS", "-X", method, "-H", "X-Auth-Token: "+c.token, "-d",
		body, "--cacert", c.authority, "--resolve", "server.pando:7401:"+c.Lab.Hosts[0].IPv4,
		"https://server.pando:7401/v2.0/lbaas"+path)
}

// ask sends a request and returns the object in its answer.
func (c curl) ask(method, path, body string) octavia.Object {
	c.Helper()
	out := c.send(method, path, body)
	var all map[string]octavia.Object
	if err := json.Unmarshal([]byte(out), &all); out != "" && err != nil {
		c.Fatalf("%s %s: %v: %s", method, path, err, out)
	}
	for _, o := range all {
		return o
	}
	return nil
}

// make creates an object and returns its id.
func (c curl) make(path, format string, args ...any) string {
	c.Helper()
	o := c.ask("POST", path, fmt.Sprintf(format, args...))
	id, ok := o["id"].(string)
	if !ok {
		c.Fatalf("POST %s: %v", path, o)
	}
	return id
}

// await waits until a word of an object has a value.
func (c curl) await(path, word, want string) {
	c.Helper()
	c.Await(path+" is "+want, func() (string, bool) {
		o := c.ask("GET", path, "")
		return fmt.Sprint(o), o[word] == want
	})
}

// counts waits until the statistics have the one open connection.
func (c curl) counts(path string) {
	c.Helper()
	c.Await("the statistics of "+path, func() (string, bool) {
		o := c.ask("GET", path+"/stats", "")
		all, _ := o["total_connections"].(float64)
		in, _ := o["bytes_in"].(float64)
		out, _ := o["bytes_out"].(float64)
		return fmt.Sprint(o), o["active_connections"] == 1.0 && all >= 1 && in > 60*all && out > 60*all
	})
}

// persists checks that SOURCE_IP keeps the client at one machine, and that null ends it.
func (c curl) persists(lb, pool string, page func() string) {
	c.Helper()
	c.ask("PUT", "/pools/"+pool, `{"pool": {"session_persistence": {"type": "SOURCE_IP"}}}`)
	c.await("/loadbalancers/"+lb, "provisioning_status", "ACTIVE")
	first := page()
	for range 12 {
		if got := page(); got != first {
			c.Errorf("the client reached %q, and then %q", first, got)
		}
	}
	c.ask("PUT", "/pools/"+pool, `{"pool": {"session_persistence": null}}`)
	c.Await("the client reaches both machines again", func() (string, bool) {
		got := page()
		return got, got != first && got != ""
	})
	c.await("/loadbalancers/"+lb, "provisioning_status", "ACTIVE")
}

// UDP-CONNECT finds a machine without the program. PING calls that machine well. It finds a machine
// that is off.
func TestMonitorsByUDPAndPing(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true})
	p.Up(p.Hosts[0])
	var programs []*labtest.Process
	for _, h := range p.Lab.Hosts[1:] {
		programs = append(programs, p.Start(h.Name, p.WithEcho()))
	}
	c := openStack(p)
	lb := c.make("/loadbalancers", `{"loadbalancer": {"listeners": [{"protocol": "UDP",
		"protocol_port": 7007, "default_pool": {"protocol": "UDP", "lb_algorithm": "SOURCE_IP_PORT",
		"members": [{"address": %q, "protocol_port": 7007}, {"address": %q, "protocol_port": 7007}]}}]}}`,
		p.Lab.Hosts[1].IPv4, p.Lab.Hosts[2].IPv4)
	pools := c.ask("GET", "/loadbalancers/"+lb, "")["pools"].([]any)
	pool := fmt.Sprint(pools[0].(map[string]any)["id"])
	monitor := func(kind string) string {
		return c.make("/healthmonitors", `{"healthmonitor": {"pool_id": %q, "type": %q, "delay": 1,
			"timeout": 1, "max_retries": 1, "max_retries_down": 2}}`, pool, kind)
	}
	udp := monitor("UDP-CONNECT")
	c.await("/loadbalancers/"+lb, "provisioning_status", "ACTIVE")
	c.await("/pools/"+pool, "operating_status", "ONLINE")
	programs[0].Stop()
	c.await("/pools/"+pool, "operating_status", "DEGRADED")
	vip := fmt.Sprint(c.ask("GET", "/loadbalancers/"+lb, "")["vip_address"])
	for range 10 { // each from a port of its own
		out := p.Run(labtest.Client, p.WithEcho(), "udp", vip+":7007", "hello")
		if out.Code != 0 {
			p.Errorf("a new flow reaches the closed port: %s", out.Text)
		}
	}
	has(p, p.Pando("why", "acme/lb-"+strings.ReplaceAll(lb, "-", "")[:16]),
		"probe udp 7007", "connection refused")
	c.ask("DELETE", "/healthmonitors/"+udp, "")
	monitor("PING")
	c.await("/loadbalancers/"+lb, "provisioning_status", "ACTIVE")
	c.await("/pools/"+pool, "operating_status", "ONLINE")
	p.Must(p.Hosts[1], "ip", "link", "set", "eth0", "down")
	c.await("/pools/"+pool, "operating_status", "DEGRADED")
	p.Must(p.Hosts[1], "ip", "link", "set", "eth0", "up")
	c.await("/pools/"+pool, "operating_status", "ONLINE")
}

// A client of OpenStack's load balancers makes one of two machines without Pando. The VIP stays
// while members and listeners come and go.
func TestALoadBalancerOfOctavia(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true})
	p.Up(p.Hosts[0])
	for n, h := range p.Lab.Hosts[1:] {
		p.Start(h.Name, "env", fmt.Sprintf("TEXT=machine-%d", n+1), p.WithEcho())
	}
	c := openStack(p)
	lb := c.make("/loadbalancers", `{"loadbalancer": {"name": "web", "vip_subnet_id": "any"}}`)
	c.await("/loadbalancers/"+lb, "provisioning_status", "ACTIVE")
	vip := fmt.Sprint(c.ask("GET", "/loadbalancers/"+lb, "")["vip_address"])
	listener := c.make("/listeners", `{"listener": {"loadbalancer_id": %q, "protocol": "TCP",
		"protocol_port": 80}}`, lb)
	pool := c.make("/pools", `{"pool": {"listener_id": %q, "protocol": "TCP",
		"lb_algorithm": "ROUND_ROBIN"}}`, listener)
	monitor := c.make("/healthmonitors", `{"healthmonitor": {"pool_id": %q, "type": "TCP", "delay": 1,
		"timeout": 1, "max_retries": 1, "max_retries_down": 1}}`, pool)
	var members []string
	for _, h := range p.Lab.Hosts[1:] {
		members = append(members, c.make("/pools/"+pool+"/members",
			`{"member": {"address": %q, "protocol_port": 8080}}`, h.IPv4))
	}
	c.await("/loadbalancers/"+lb, "operating_status", "ONLINE")
	c.await("/loadbalancers/"+lb, "provisioning_status", "ACTIVE")
	page := func() string {
		return strings.TrimSpace(p.Run(labtest.Client, "curl", "-s", "-m", "2", "http://"+vip+"/").Text)
	}
	seen := map[string]int{}
	p.Await("a client reaches both machines", func() (string, bool) {
		seen[page()]++
		return fmt.Sprint(seen), seen["machine-1"] > 0 && seen["machine-2"] > 0
	})
	c.persists(lb, pool, page)
	c.ask("DELETE", "/pools/"+pool+"/members/"+members[0], "")
	p.Await("the member is gone", func() (string, bool) {
		for range 10 {
			if got := page(); got != "machine-2" {
				return got, false
			}
		}
		return "", true
	})
	// The single member is replaced at once, although it has an open connection.
	hold := p.Start(labtest.Client, p.WithEcho(), "hold", vip+":80")
	hold.AwaitText("holding")
	c.counts("/loadbalancers/" + lb)
	c.counts("/listeners/" + listener)
	c.ask("PUT", "/healthmonitors/"+monitor, `{"healthmonitor": {"delay": 2}}`)
	c.await("/loadbalancers/"+lb, "provisioning_status", "ACTIVE")
	if got := page(); got != "machine-2" {
		p.Errorf("after a change of the health monitor, a new connection reaches %q", got)
	}
	if out := hold.Stop(); out.Code != 0 {
		p.Errorf("an open connection broke: %s", out.Text)
	}
	c.ask("DELETE", "/pools/"+pool+"/members/"+members[1], "")
	c.await("/loadbalancers/"+lb, "provisioning_status", "ACTIVE")
	c.await("/loadbalancers/"+lb, "operating_status", "OFFLINE")
	has(p, p.Pando("audit"), "token acme/lb", "create-member", "delete-member", "service acme/lb-")
	if got := fmt.Sprint(c.ask("GET", "/loadbalancers/"+lb, "")["vip_address"]); got != vip {
		p.Errorf("the VIP was %s and is %s", vip, got)
	}
	c.ask("DELETE", "/loadbalancers/"+lb+"?cascade=true", "")
	p.Await("the load balancer is gone", func() (string, bool) {
		out := c.send("GET", "/loadbalancers/"+lb, "")
		return out, strings.Contains(out, `"faultcode":"Client"`)
	})
}
