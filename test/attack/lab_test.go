package attack

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// city is a lab of two hosts: the first has the server. Two tenants live on the second one.
type city struct {
	*labtest.Pando
	evil, vault *labtest.Service
}

// TestAttacksInALab tries what needs two hosts, each attack as a part of its own.
func TestAttacksInALab(t *testing.T) {
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, Idle: true})
	smallDisk(p, p.Hosts[1]) // before the first sandbox sees the files of the host
	p.Up(p.Hosts[0])
	p.Join(p.Hosts[1])
	there := "place: {only: host=" + p.Hosts[1] + "}"
	c := city{p, p.Deploy(labtest.Echo("evil", "tenant: acme", there)),
		p.Deploy(labtest.Echo("vault", "tenant: bank", there))}
	for row, try := range map[string]func(city){
		"A8 A9 A10 H10": city.reachHosts, "B9": city.askWithoutACertificate, "C1 C8 C9": city.findSockets,
		"P1": city.removeStates, "P2": city.lookAtTheServer, "H8 P12": city.fillDisk, "H14": city.shareConnections,
		"P11": city.readForeignLogs, "P15 P17 P18 P19": city.deployHostileSpecs, "P16": city.takeNames,
		"P23": city.ruleOtherHosts, "P27 requests": city.aboutAnother, "P27 changes": city.watchAnother,
		"P27 load balancers": city.balanceToAnother,
	} {
		t.Run(row, func(t *testing.T) {
			try(city{p.In(t), c.evil.In(p.In(t)), c.vault.In(p.In(t))})
		})
	}
}

// reachHosts opens connections from an instance to the ports of both hosts and to another tenant.
func (c city) reachHosts() {
	first, own := c.Lab.Hosts[0], c.Lab.Hosts[1]
	const foreign = "2222" // a program that has nothing to do with Pando
	listener := c.Start(c.Hosts[0], "python3", "-u", "-m", "http.server", "--bind", "::", foreign)
	listener.AwaitText("Serving")
	defer listener.Stop()
	open := c.Run(c.Hosts[1], "curl", "-sS", "--max-time", "10", "http://"+first.IPv4+":"+foreign)
	if open.Code != 0 {
		c.Fatalf("the host itself does not reach the program: %s", open.Text)
	}
	targets := []string{c.vault.VIP + ":80", c.evil.VIP + ":81"}
	var vault pando.ServiceStatus
	if err := json.Unmarshal([]byte(c.Pando.Pando("status", "bank/vault", "-o", "json")), &vault); err != nil {
		c.Fatal(err)
	}
	for _, i := range vault.Instances {
		targets = append(targets, i.IP4.String()+":8080")
	}
	for _, port := range []string{foreign, "22", "7401", "7402", "7403", "7405"} {
		targets = append(targets, first.IPv4+":"+port, "["+first.IPv6+"]:"+port, own.IPv4+":"+port)
	}
	var line strings.Builder
	for _, to := range targets {
		fmt.Fprintf(&line, "echo '%s '$(curl -sS --max-time 10 '%s' 2>&1);", to,
			c.evil.URL("/get?url=http://"+to+"/"))
	}
	said := c.Must(c.Hosts[1], "sh", "-c", line.String())
	for _, to := range targets {
		_, after, found := strings.Cut(said, to+" ")
		answer, _, _ := strings.Cut(after, "\n")
		if !found || !strings.Contains(answer, "refused") {
			c.Errorf("an instance reaches %s: %q", to, answer)
		}
	}
}

// askWithoutACertificate asks the operators' API as nobody, with a forged operator.
func (c city) askWithoutACertificate() {
	for _, what := range []string{"GET /v1/services", "DELETE /v1/services/vault?tenant=bank&purge=true"} {
		method, path, _ := strings.Cut(what, " ")
		got := c.Run(labtest.Client, "curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "-X", method,
			"-H", "Pando-Operator: root", "https://"+c.Lab.Hosts[0].IPv4+":7401"+path)
		if got.Text != "401" && got.Text != "403" {
			c.Errorf("%s without a certificate: %s", what, got.Text)
		}
	}
}

// findSockets looks for sockets that another user of a host may open.
func (c city) findSockets() {
	for _, host := range c.Hosts {
		abstract := c.Must(host, "sh", "-c", "grep -c '@' /proc/net/unix || true")
		if strings.TrimSpace(abstract) != "0" {
			c.Errorf("%s has %s abstract sockets, which have no mode", host, abstract)
		}
		nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}
		seen := c.Run(host, append(nobody, "find", "/run/pando", "-type", "s", "-perm", "/0007")...)
		if strings.Contains(seen.Text, ".sock\n") {
			c.Errorf("everybody opens %s", seen.Text)
		}
		for _, s := range []string{"api", "agent", "store", "control"} {
			got := c.Run(host, append(nobody, "curl", "-sS", "--unix-socket", "/run/pando/"+s+".sock",
				"http://x/v1/services")...)
			if got.Code == 0 {
				c.Errorf("nobody opens %s.sock of %s: %s", s, host, got.Text)
			}
		}
	}
}

// removeStates tries to delete a service of another tenant with its state, by a certificate alone.
func (c city) removeStates() {
	got := c.Run(c.Hosts[1], c.Bin, "rm", "bank/vault", "--purge")
	if got.Code == 0 || !strings.Contains(got.Text, "pando hosts allow "+c.Hosts[1]+" deploy") {
		c.Errorf("a member without a right removes a state: exit code %d, %s", got.Code, got.Text)
	}
	if got := c.Pando.Pando("ps"); !strings.Contains(got, "vault") {
		c.Errorf("the service of another tenant goes: %s", got)
	}
}

// lookAtTheServer looks at what a fault in the server would give away.
func (c city) lookAtTheServer() {
	host := c.Hosts[0]
	pid := strings.TrimSpace(c.Must(host, "cat", "/run/pando/server.pid"))
	status := c.Must(host, "cat", "/proc/"+pid+"/status")
	values := map[string]string{}
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		values[name] = strings.Join(strings.Fields(value), " ")
	}
	const files = "0000000000000006" // DAC_OVERRIDE, DAC_READ_SEARCH
	for name, want := range map[string]string{"NoNewPrivs": "1", "CapEff": files, "CapBnd": files,
		"Uid": "1999999999 1999999999 1999999999 1999999999"} {
		if values[name] != want {
			c.Errorf("the server has %s %q, want %q", name, values[name], want)
		}
	}
	if owner := c.Must(host, "stat", "-c", "%u %a", c.Data(host)+"/store"); owner != "1999999999 700\n" {
		c.Errorf("the store has the owner and the mode %q", owner)
	}
}
