package e2e

import (
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// resolver answers every question for an address with 192.0.2.77.
const resolver = `
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 53))
print("listening", flush=True)
while True:
    q, who = s.recvfrom(512)
    end = q.index(b"\0", 12) + 5
    kind = struct.unpack("!H", q[end - 4:end - 2])[0]
    a = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 5, 4) + bytes([192, 0, 2, 77]) if kind == 1 else b""
    s.sendto(q[:2] + struct.pack("!5H", 0x8180, 1, 1 if a else 0, 0, 0) + q[12:end] + a, who)
`

// An instance with a resolver of its own finds the names that only this one knows, by the domains of
// its spec, and the services of its tenant. A resolver on a host is not in reach.
func TestAServiceHasAResolverOfItsOwn(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	client := p.Lab.Client.IPv4
	serving := p.Start(labtest.Client, "/usr/bin/python3", "-c", resolver, client)
	serving.AwaitText("listening")
	onHost := p.Start(p.Host(), "/usr/bin/python3", "-c", resolver, p.Lab.Hosts[0].IPv4)
	onHost.AwaitText("listening")
	web := p.Deploy(labtest.Echo("web", "dns: ["+client+"]", "dns_search: [corp.example]"))
	p.Deploy(labtest.Echo("inward", "dns: ["+p.Lab.Hosts[0].IPv4+"]"))
	p.Deploy(labtest.Echo("plain"))
	ask := func(service, name string) string {
		return p.Run(p.Host(), p.Bin, "exec", service, "--", "getent", "ahostsv4", name).Text
	}
	for _, name := range []string{"printer.corp.example", "printer"} {
		if got := ask("web", name); !strings.Contains(got, "192.0.2.77") {
			t.Errorf("with a resolver of its own, %s is %q", name, got)
		}
	}
	if got := ask("web", "plain"); !strings.Contains(got, "10.127.") {
		t.Errorf("the name of a service is %q", got)
	}
	for _, service := range []string{"plain", "inward"} {
		if got := ask(service, "printer.corp.example"); strings.Contains(got, "192.0.2.77") {
			t.Errorf("%s finds a name of a resolver out of its reach: %q", service, got)
		}
	}
	web.AwaitPage(labtest.Client)
}
