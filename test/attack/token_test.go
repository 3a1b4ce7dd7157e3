package attack

import (
	"encoding/json"
	"fmt"
	"strings"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/lab/labtest"
)

// bearer asks the API as a caller from outside with a token of the tenant acme.
type bearer struct {
	city
	api, token string
}

// bearing returns a caller with every right of a token but host.
func (c city) bearing() bearer {
	var is access.IssuedToken
	out := c.Pando.Pando("tenant", "token", "add", "acme", "thief", "--may", "scale,deploy,exec",
		"--replace", "-o", "json")
	if err := json.Unmarshal([]byte(out), &is); err != nil {
		c.Fatal(err)
	}
	return bearer{c, is.API, is.Token}
}

// ask returns the status and the body of an answer.
func (b bearer) ask(method, path, body string) (status, text string) {
	got := b.Must(labtest.Client, "curl", "-sk", "--max-time", "20", "-X", method, "-H",
		"Authorization: Bearer "+b.token, "-H", "Content-Type: application/json", "-H",
		"Upgrade: pando-session", "-d", body, "-w", "\n%{http_code}", b.api+path)
	at := strings.LastIndexByte(got, '\n')
	return got[at+1:], got[:at]
}

// refused fails unless the API refuses a request, and says no word of another tenant's program.
func (b bearer) refused(what, method, path, body string) {
	status, text := b.ask(method, path, body)
	if !strings.HasPrefix(status, "4") || strings.Contains(text, b.secret()) {
		b.Errorf("%s: %s %s", what, status, text)
	}
}

// secret is a line of the log of the other tenant.
func (c city) secret() string { return "the account of bank" }

// readForeignLogs reads the log of another tenant's instance by its name, in the paths of an own
// service. The names of instances are no secret.
func (c city) readForeignLogs() {
	id := string(c.instances("bank/vault")[0])
	c.vault.Get(labtest.Client, "/print?text="+strings.ReplaceAll(c.secret(), " ", "+"))
	c.Await("the line in the log of its own tenant", func() (string, bool) {
		text := c.Pando.Pando("logs", "bank/vault")
		return text, strings.Contains(text, c.secret())
	})
	b := c.bearing()
	if status, text := b.ask("GET", "/v1/services/evil/logs", ""); status != "200" {
		c.Fatalf("the own log: %s %s", status, text)
	}
	for _, path := range []string{"/v1/services/evil/logs?lines=9&instance=" + id,
		"/v1/services/evil/logs?follow=true&instance=" + id, "/v1/services/none/logs?instance=" + id,
		"/v1/services/evil/logs?instance=" + id + "&tenant=bank", "/v1/services/vault/logs",
		"/v1/services/evil/logs?instance=..%2F..%2Fbank%2Fvault%2F" + id} {
		b.refused("a log of another tenant", "GET", path, "")
	}
	b.refused("a command in an instance of another tenant", "POST",
		"/v1/services/evil/exec?instance="+id, `{"command": ["id"]}`)
}

// deployHostileSpecs sends specs as JSON, past the reader of the client.
func (c city) deployHostileSpecs() {
	b := c.bearing()
	for what, one := range map[string][2]string{
		"an address behind a name":     {`"endpoints": [{"address": "` + c.vault.VIP + `", "port": 80}]`, "endpoints"},
		"a program of the hosts":       {`"image": {"reference": ""}`, "command without image uses something"},
		"a path of the hosts to write": {`"grants": ["path=/etc:rw"]`, "grants uses something of the hosts"},
		"a folder with its own ids": {`"folders": [{"path": "/var/lib/pando", "at": "/d", "write": true, "idmap": true}]`,
			"folder"},
		"calls without a filter":   {`"security_opt": ["seccomp=unconfined"]`, "security_opt"},
		"a label of the hosts":     {`"place": {"only": "host=a\nhost=b"}`, "want NAME=VALUE"},
		"an archive of the server": {`"image": {"reference": "docker-archive:/etc/shadow"}`, "uses something of the hosts"},
		"memory of the kernel": {`"sysctls": {"net.ipv4.ipfrag_high_thresh": "99999999999"}`,
			"sysctls.net.ipv4.ipfrag_high_thresh uses something of the hosts"},
		"a port of the hosts": {`"ports": [{"published": 80, "target": 80, "protocol": "tcp", "host": 22}]`,
			"publish.host uses something of the hosts"},
		"the network of the hosts": {`"grants": ["netns=host"]`, "grants uses something of the hosts"},
		"a folder of the hosts": {`"folders": [{"path": "/etc/ssl", "at": "/data", "write": true}]`,
			"folders uses something of the hosts"},
		"the users of the hosts":    {`"userns_mode": "host"`, "userns_mode uses something of the hosts"},
		"a file of the hosts":       {`"secrets": {"a": "/etc/shadow"}`, "secrets of files uses something"},
		"the metadata of the cloud": {`"reach": ["metadata"]`, "reach: metadata uses something of the hosts"},
		"a volume of another tenant": {`"volumes": [{"name": "d", "path": "/d", "shared": true,
			"of": "bank/vault"}]`, "service name"},
		"a volume by a path": {`"volumes": [{"name": "../../bank/vault/d", "path": "/d"}]`, "want a name of letters"},
		"a volume over /proc": {`"volumes": [{"name": "d", "path": "/proc/1", "shared": true}]`,
			"/proc is the instance's own"},
		"a volume beyond the quota": {`"volumes": [{"name": "d", "path": "/d", "bytes": 1099511627776}]`,
			"quota disk"},
		"a line in /etc/hosts": {`"hostname": "a\n192.0.2.1 b"`, "hostname: "},
		"a line by an address": {`"extra_hosts": {"a": "fe80::1%x\n192.0.2.1 b"}`, "extra_hosts.a: "},
		"a line in an alias":   {`"aliases": ["a\nb"]`, "alias "},
		"a probe of a host": {`"health": {"ready": {"kind": "http", "port": 80, "path": "@169.254.169.254/"}}`,
			"want one that begins with /"},
		"a probe with a line": {`"health": {"ready": {"kind": "http", "port": 80, "path": "/ x\r\nX: y"}}`,
			"want one that begins with /"},
		"a header with a line": {`"health": {"ready": {"kind": "http", "port": 80, "path": "/",
			"headers": ["Host: a\r\nX: y"]}}`, "want NAME: VALUE"},
		"a time without an end": {`"health": {"ready_seconds_max": 1e300}`, "health.ready_seconds_max"},
		"a registry of the inside": {`"image": {"reference": "` + c.Lab.Hosts[1].IPv4 + `:5000/x", "inside": true}`,
			"it leads inside"},
		"a registry of the server": {`"image": {"reference": "127.0.0.1:7400/x", "inside": true}`, "it leads inside"},
		"a snapshot":               {`"image": {"reference": "snapshot of bank/vault"}`, "uses something of the hosts"},
		"a bundle":                 {`"image": {"reference": "bundle:/etc"}`, "uses something of the hosts"},
		"another tenant":           {`"tenant": "bank"`, "not of bank"},
	} {
		words, want := one[0], one[1]
		if !strings.Contains(words, `"image"`) {
			words += `, "image": {"reference": "registry.invalid/x"}`
		}
		status, text := b.ask("POST", "/v1/services", `{"name": "thief", "command": ["x"], `+words+`}`)
		if !strings.HasPrefix(status, "4") || !strings.Contains(text, want) {
			b.Errorf("%s: %s %s, want %q", what, status, text, want)
		}
	}
	if got := c.Pando.Pando("ps"); strings.Contains(got, "thief") {
		c.Errorf("a hostile spec is a service: %s", got)
	}
}

// aboutAnother asks everything that the API has, with the names of another tenant.
func (c city) aboutAnother() {
	b := c.bearing()
	_, text := b.ask("GET", "/openapi.json", "")
	var api struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal([]byte(text), &api); err != nil || len(api.Paths) < 40 {
		c.Fatalf("the API has %d paths: %v", len(api.Paths), err)
	}
	before := c.Pando.Pando("status", "bank/vault", "-o", "json")
	id := string(c.instances("bank/vault")[0])
	fill := strings.NewReplacer("{name}", "vault", "{tenant}", "bank", "{secret}", "key", "{host}", c.Hosts[1],
		"{token}", "x", "{number}", "1", "{volume}", "d", "{snapshot}", "aaaaaaaa", "{right}", "deploy",
		"{digest}", "sha256:"+strings.Repeat("a", 64))
	for path, methods := range api.Paths {
		for method := range methods {
			lists := method == "get" && !strings.Contains(path, "{")
			at := fill.Replace(path) + "?tenant=bank&instance=" + id
			if path == "/v1/watch" {
				continue // it has no end: see watchAnother
			}
			status, text := b.ask(strings.ToUpper(method), at, "{}")
			if status[0] != '4' && !(lists && status == "200") || strings.Contains(text, id) ||
				strings.Contains(text, c.vault.VIP) {
				c.Errorf("%s %s: %s %s", method, at, status, text)
			}
		}
	}
	if after := c.Pando.Pando("status", "bank/vault", "-o", "json"); stable(after) != stable(before) {
		c.Errorf("the service of the other tenant was %s and is %s", before, after)
	}
}

// stable returns what a request of another tenant could change in a status.
func stable(status string) string {
	var st pando.ServiceStatus
	if err := json.Unmarshal([]byte(status), &st); err != nil {
		return err.Error()
	}
	var out []string
	for _, i := range st.Instances {
		out = append(out, string(i.ID)+" "+string(i.Phase))
	}
	return fmt.Sprint(st.Current, st.Target, st.Pin, out)
}

// balanceToAnother makes load balancers of Octavia with something of others behind them: the service of
// another tenant, its instance, and a port of a host.
func (c city) balanceToAnother() {
	b := c.bearing()
	var vault pando.ServiceStatus
	if err := json.Unmarshal([]byte(c.Pando.Pando("status", "bank/vault", "-o", "json")), &vault); err != nil {
		c.Fatal(err)
	}
	for address, want := range map[string]string{
		c.vault.VIP:                     "is the VIP of a service",
		vault.Instances[0].IP4.String(): "endpoint",
		c.Lab.Hosts[0].IPv4:             "endpoints uses something of the hosts",
		"127.0.0.1":                     "endpoint",
	} {
		status, text := b.ask("POST", "/v2.0/lbaas/loadbalancers", `{"loadbalancer": {"name": "thief",
			"vip_subnet_id": "pando", "listeners": [{"protocol": "TCP", "protocol_port": 80, "default_pool":
			{"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": [{"address": "`+address+`",
			"protocol_port": 22}]}}]}}`)
		if !strings.HasPrefix(status, "4") || !strings.Contains(text, want) {
			c.Errorf("a load balancer in front of %s: %s %s", address, status, text)
		}
	}
	if got := c.Pando.Pando("ps"); strings.Contains(got, "lb-") {
		c.Errorf("a load balancer of the token is a service: %s", got)
	}
}

// watchAnother follows all changes while another tenant's service changes.
func (c city) watchAnother() {
	b := c.bearing()
	follow := c.Start(labtest.Client, "curl", "-skN", "-H", "Authorization: Bearer "+b.token,
		b.api+"/v1/watch?tenant=acme")
	follow.AwaitText("bookmark")
	c.Pando.Pando("scale", "bank/vault", "auto")
	c.Pando.Pando("scale", "bank/vault", "1")
	c.Pando.Pando("scale", "acme/evil", "1") // the watch has passed what came before
	follow.AwaitText("evil")
	if said := follow.Stop().Text; strings.Contains(said, "vault") || strings.Contains(said, "bank") {
		c.Errorf("a token of acme sees %s", said)
	}
	if status, text := b.ask("GET", "/v1/watch?tenant=bank", ""); status[0] != '4' {
		c.Errorf("the changes of another tenant: %s %s", status, text)
	}
}

// takeNames gives a service of one tenant further names that others ask for. Another tenant and the
// host get the answers that they had.
func (c city) takeNames() {
	names := []string{"vault", "bank", "vault.bank", "vault.bank.pando", "localhost",
		"registry-1.docker.io", "metadata.google.internal", "169.254.169.254", c.Hosts[0]}
	thief := c.Deploy(labtest.Echo("thief", "tenant: acme", "aliases: ["+strings.Join(names, ", ")+"]",
		"place: {only: host="+c.Hosts[1]+"}"))
	defer c.Pando.Pando("rm", "acme/thief", "--wait")
	if got := c.evil.Get(labtest.Client, "/lookup?name=registry-1.docker.io"); !strings.Contains(got, thief.VIP) {
		c.Errorf("the own tenant gets %q for a further name, want %s", got, thief.VIP)
	}
	for _, name := range names {
		got := c.Run(labtest.Client, "curl", "-sS", "--max-time", "20", c.vault.URL("/lookup?name="+name))
		if strings.Contains(got.Text, thief.VIP) {
			c.Errorf("another tenant gets the thief for %s: %s", name, got.Text)
		}
	}
	got := c.vault.Get(labtest.Client, "/lookup?name=vault")
	if !strings.Contains(got, c.vault.VIP) {
		c.Errorf("the other tenant gets %q for its own service, want %s", got, c.vault.VIP)
	}
}

// ruleOtherHosts tries the requests about hosts as the operator of a host without a right.
func (c city) ruleOtherHosts() {
	for _, args := range [][]string{{"hosts", "drain", c.Hosts[0]}, {"hosts", "undrain", c.Hosts[0]},
		{"hosts", "undrain", c.Hosts[1]}, {"hosts", "allow", c.Hosts[1], "deploy"}, {"rebalance"},
		{"restart", "bank/vault"}, {"rollback", "bank/vault"}, {"exec", "bank/vault", "--", "id"},
		{"volume", "rm", "bank/vault", "d"}, {"tenant", "token", "add", "bank", "x", "--may", "exec"}} {
		got := c.Run(c.Hosts[1], append([]string{c.Bin}, args...)...)
		if got.Code == 0 {
			c.Errorf("a member without a right: pando %s: %s", strings.Join(args, " "), got.Text)
		}
	}
	if all := c.instances("bank/vault"); len(all) != 1 {
		c.Errorf("the service of another tenant has the instances %v", all)
	}
}
