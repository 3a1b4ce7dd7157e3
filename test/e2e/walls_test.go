package e2e

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// own returns the own addresses of the instances of a service.
func own(p *labtest.Pando, name string) (out []netip.Addr) {
	p.Helper()
	var st pando.ServiceStatus
	if err := json.Unmarshal([]byte(p.Pando("status", name, "-o", "json")), &st); err != nil {
		p.Fatal(err)
	}
	for _, i := range st.Instances {
		out = append(out, i.IP4)
	}
	return out
}

// An instance opens connections to the parts of the network that its spec names. To all others it
// gets a refusal at once, which needs no service behind it.
func TestAnInstanceReachesTheNetworkThatItsSpecNames(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "scale: {min: 2}"))
	free := p.Deploy(labtest.Echo("free", "reach: [internet, tenants, host, metadata]"))
	shut := p.Deploy(labtest.Echo("shut", "reach: [tenant]"))
	vault := p.Deploy(labtest.Echo("vault", "tenant: bank"))
	for _, machine := range []string{p.Host(), labtest.Client} {
		p.Start(machine, "python3", "-u", "-m", "http.server", "--directory", p.Dir, "8000").
			AwaitText("Serving")
	}
	webs, vaults := own(p, "web"), own(p, "bank/vault")
	host, client := p.Lab.Hosts[0].IPv4+":8000", p.Lab.Client.IPv4+":8000"
	for _, c := range []struct {
		from    *labtest.Service
		to      string
		reaches bool
	}{
		{web, client, true},
		{web, free.VIP, true},
		{web, webs[0].String() + ":8080", true},
		{web, webs[1].String() + ":8080", true},
		{web, own(p, "free")[0].String() + ":8080", false},
		{web, vault.VIP, false},
		{web, vaults[0].String() + ":8080", false},
		{web, host, false},
		{web, pando.Gateway4.String() + ":7400", false},
		{web, "169.254.169.254", false},
		{vault, web.VIP, false},
		{vault, webs[0].String() + ":8080", false},
		{vault, client, true},
		{free, vault.VIP, true},
		{free, vaults[0].String() + ":8080", true},
		{free, host, true},
		{shut, web.VIP, true},
		{shut, client, false},
		{shut, host, false},
	} {
		got := p.Run(p.Host(), "curl", "-sS", "--max-time", "20", c.from.URL("/get?url=http://"+c.to+"/"))
		refused := strings.Contains(got.Text, "refused")
		if got.Code != 0 || refused == c.reaches {
			t.Errorf("%s to %s: reaches %t, want %t: %s", c.from.Name, c.to, !refused, c.reaches,
				got.Text)
		}
	}
	if got := web.Get(labtest.Client, "/lookup?name=free.pando"); !strings.Contains(got, free.VIP) {
		t.Errorf("an instance that asks for a name got %q", got)
	}
	udp := p.Must(p.Host(), p.WithEcho(), "udp", vault.VIP+":7", "hi")
	if !strings.HasSuffix(udp, " hi\n") {
		t.Errorf("the host received the datagram %q", udp)
	}
}
