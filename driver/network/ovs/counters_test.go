package ovs

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pando.run/pando"
)

const learnedLine = " cookie=0x70616e0500000003, duration=12.5s, table=10, n_packets=7, " +
	"n_bytes=420, idle_timeout=8100, idle_age=4, priority=10,tcp,nw_src=192.0.2.1," +
	"nw_dst=10.127.0.7,tp_src=4000,tp_dst=80 actions=set_field:0x3/0xffff->reg0"

func TestALearnedFlowIsRead(t *testing.T) {
	f, ok, err := parse(strings.TrimSpace(learnedLine))
	if err != nil || !ok || f.kind != kindKnown || f.low != 3 || f.table != tableKnown || f.packets != 7 ||
		f.bytes != 420 || f.idle != 4 || f.age != 12.5 {
		t.Fatalf("parsed %+v, %v", f, ok)
	}
	p := plug{Port: 3, Ports: ports, VIP4: vip4}
	c, match, ok := p.connection(f)
	want := pando.Connection{
		Protocol: pando.TCP, Client: netip.MustParseAddrPort("192.0.2.1:4000"),
		Local: netip.MustParseAddrPort("10.127.0.7:8080"),
	}
	if !ok || c != want {
		t.Errorf("its connection is %+v, want %+v", c, want)
	}
	if match != "table=10,priority=10,tcp,nw_src=192.0.2.1,nw_dst=10.127.0.7,tp_src=4000,tp_dst=80" {
		t.Errorf("its match is %q", match)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(strings.TrimSpace(learnedLine))
	f.Add("OFPST_FLOW reply (OF1.5) (xid=0x2):")
	f.Add("cookie=0x, actions=")
	f.Add("cookie=0xzz,table=1 actions=drop")
	f.Fuzz(func(t *testing.T, line string) {
		if one, ok, err := parse(line); ok && err == nil {
			plug{}.connection(one)
		}
	})
}

// A flow whose numbers cannot be read is an error. It is neither idle nor absent.
func TestANumberOfAFlowThatCannotBeReadIsAnError(t *testing.T) {
	for _, name := range []string{"n_packets=7", "n_bytes=420", "idle_age=4", "duration=12.5s", "table="} {
		was, _, _ := strings.Cut(name, "=")
		line := regexp.MustCompile(was+`=[^ ,]*`).ReplaceAllString(strings.TrimSpace(learnedLine), was+"=many")
		if _, ok, err := parse(line); ok || err == nil || !strings.Contains(err.Error(), was) {
			t.Errorf("%s: %v, %v", line, ok, err)
		}
	}
}

func TestCountTellsLiveFlowsFromOthers(t *testing.T) {
	p := plug{Port: 3, Ports: ports, VIP4: vip4, VIP6: vip6}
	of := func(port string, idle, age float64) flow {
		match := map[string]string{
			"tcp": "", "nw_src": "192.0.2.1", "nw_dst": "10.127.0.7", "tp_src": port, "tp_dst": "80",
		}
		return flow{
			kind: kindKnown, low: 3, table: tableKnown, idle: idle, age: age, match: match,
		}
	}
	socket := func(port uint16, local string) pando.Connection {
		return pando.Connection{
			Protocol: pando.TCP, Client: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port),
			Local: netip.MustParseAddrPort(local),
		}
	}
	sockets := map[pando.Connection]bool{
		socket(1, "10.127.0.7:8080"): true,  // with a learned flow
		socket(2, "10.127.0.7:8080"): true,  // the switch has lost its flow
		socket(3, "10.128.0.2:8080"): true,  // direct
		socket(4, "10.127.0.7:8080"): false, // a handshake
	}
	learned := []flow{of("1", 100, 1000), of("4", 9, 9), of("5", 9, 9), of("6", 1, 1)}
	live, over := p.count(learned, sockets)
	if live != 3 { // 1, 2 and the young handshake 6
		t.Errorf("%d live flows, want 3", live)
	}
	if len(over) != 1 || !strings.Contains(over[0], "tp_src=5,") {
		t.Errorf("forgotten: %q, want the flow of port 5", over)
	}
	lines := p.known(sockets)
	if len(lines) != 1 || !strings.Contains(lines[0], "tp_src=2,tp_dst=80") {
		t.Errorf("learned again: %q, want the flow of port 2", lines)
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{
		"3.1.0": true, "3.3.2": true, "4.0": true,
		"2.17.9": false, "3.0.9": false, "": false, "x.y": false,
	} {
		if recent(version) != want {
			t.Errorf("version %q is recent: %v", version, !want)
		}
	}
}

func TestRecordsOutliveTheAgent(t *testing.T) {
	dir := t.TempDir()
	open := func() *Driver {
		d := &Driver{
			Config: Config{StateDir: dir}, services: map[pando.ServiceKey]*service{},
			numbers: map[uint32]pando.ServiceKey{}, links: map[string]*connected{},
		}
		if err := d.recall(); err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	s := service{
		Table: pando.SteeringTable{Service: web}, Number: 7, Rules: rules{"table=1": {"0x1", "drop"}},
	}
	l := connected{
		plug{Port: 3, Link: pando.Link{Host: "pd3", MAC: mac}}, rules{"table=2": {"0x2", "drop"}},
	}
	for path, v := range map[string]any{d.serviceFile(web): s, d.linkFile("pd3"): l} {
		if err := store(path, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "links", "pd4"), []byte("{damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := open()
	got := again.services[web]
	if got == nil || got.Number != 7 || got.Rules["table=1"].Actions != "drop" {
		t.Errorf("the service is %+v", got)
	}
	if l := again.links["pd3"]; l == nil || l.Port != 3 || l.Link.MAC.String() != mac.String() {
		t.Errorf("the link is %+v", l)
	}
	if len(again.links) != 1 {
		t.Errorf("%d links, want 1: a damaged record is skipped", len(again.links))
	}
	if n := again.number(); n == 7 {
		t.Error("a new service gets a number in use")
	}
}
