package octavia

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"pando.run/pando"
)

var testKey = NewKey([8]byte{1, 2, 3, 4, 5, 6, 7, 8})

// made returns a load balancer of one request.
func made(t *testing.T, body string) Document {
	t.Helper()
	d, err := tried(body)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func tried(body string) (Document, error) {
	r, err := Read(LoadBalancerKind, []byte(`{"loadbalancer": `+body+`}`))
	if err != nil {
		return Document{}, err
	}
	return Create(testKey, r)
}

// two returns the members of a pool on two machines.
func two(port int, more string) string {
	m := `{"address": "192.0.2.%d", "protocol_port": %d%s}`
	return fmt.Sprintf(m+","+m, 7, port, more, 8, port, more)
}

// listen returns a listener with a pool.
func listen(protocol string, port int, by, members, more string) string {
	return fmt.Sprintf(`{"protocol": %q, "protocol_port": %d, "default_pool": {"protocol": %[1]q,
		"lb_algorithm": %[3]q, "members": [%[4]s]%[5]s}}`, protocol, port, by, members, more)
}

func TestAnIDLeadsToItsService(t *testing.T) {
	for _, kind := range Kinds {
		id := testKey.ID(kind, 258)
		k, n, err := ParseID(kind, strings.ToUpper(id))
		if err != nil || k != testKey || n != 258 {
			t.Errorf("%s %s: %v %d %v", kind, id, k, n, err)
		}
		for _, other := range Kinds {
			if _, _, err := ParseID(other, id); (err == nil) != (other == kind) {
				t.Errorf("the id of a %s as one of a %s: %v", kind, other, err)
			}
		}
	}
	want := "01020304-0506-8708-8001-000000000102"
	if got := testKey.ID(ListenerKind, 258); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if k, ok := KeyOf(testKey.Service()); !ok || k != testKey {
		t.Errorf("%s has the key %v", testKey.Service(), k)
	}
	for _, s := range []pando.ServiceName{"lb-web", "web", "lb-0102030405060708",
		"lb-010203040506870", "lb-010203040506870A"} {
		if _, ok := KeyOf(s); ok {
			t.Errorf("%s is a load balancer", s)
		}
	}
	for _, id := range []string{"", "web", "01020304-0506-8708-8001-0000000001", "--",
		"0102030405068708800100000000102"} {
		if _, _, err := ParseID(ListenerKind, id); !errors.Is(err, pando.ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func monitorOf(kind string) string {
	return fmt.Sprintf(`, "healthmonitor": {"type": %q, "delay": 5, "timeout": 2, "max_retries": 2}`,
		kind)
}

// summary returns the words of a spec that follow from a load balancer.
func summary(s pando.Spec) string {
	zero := ""
	if s.Scale.Zero {
		zero = "zero"
	}
	var ports []string
	for _, p := range s.Ports {
		ports = append(ports, fmt.Sprintf("%d:%d/%s", p.Published, p.Target, p.Protocol))
	}
	out := fmt.Sprintf("%v %v %s %s", ports, s.Endpoints, zero, s.Balance.WithDefaults().By)
	if h := s.Health; h.Live.Kind != "" {
		out += fmt.Sprintf(" %s :%d%s %g %g %d", h.Live.Kind, h.Live.Port, h.Live.Path,
			h.IntervalSeconds, h.TimeoutSeconds, h.Fall)
	}
	return out
}

// Each listener is a port, and the machines in all pools are the endpoints.
func TestALoadBalancerBecomesASpec(t *testing.T) {
	monitor := `, "healthmonitor": {"type": "HTTP", "delay": 5, "timeout": 2, "max_retries": 2,
		"url_path": "/ok"}`
	for name, c := range map[string]struct{ listeners, want string }{
		"none":    {"", "[] [] zero hash"},
		"no pool": {`{"protocol": "TCP", "protocol_port": 80}`, "[] [] zero hash"},
		"one member": {listen("TCP", 80, roundRobin, `{"address": "192.0.2.7", "protocol_port": 1}`, ""),
			"[80:1/tcp] [192.0.2.7]  round-robin"},
		"of one": {listen("TCP", 80, roundRobin, two(8080, ""), ""),
			"[80:8080/tcp] [192.0.2.7 192.0.2.8]  round-robin"},
		"by UDP": {listen("UDP", 53, sourceIPPort, two(53, ""), ""),
			"[53:53/udp] [192.0.2.7 192.0.2.8]  hash"},
		"weighted": {listen("TCP", 80, roundRobin, two(8080, "")+
			`,{"address": "192.0.2.9", "protocol_port": 8080, "weight": 3}`, ""),
			"[80:8080/tcp] [192.0.2.7 weight 1 192.0.2.8 weight 1 192.0.2.9 weight 3]  hash"},
		"by client": {listen("TCP", 80, sourceIP, two(8080, ""), ""),
			"[80:8080/tcp] [192.0.2.7 192.0.2.8]  client"},
		"with persistence": {listen("TCP", 80, leastConnections, two(8080, ""),
			`, "session_persistence": {"type": "SOURCE_IP", "cookie_name": null}`),
			"[80:8080/tcp] [192.0.2.7 192.0.2.8]  client"},
		"with empty persistence": {listen("TCP", 80, roundRobin, two(8080, ""),
			`, "session_persistence": {}`), "[80:8080/tcp] [192.0.2.7 192.0.2.8]  round-robin"},
		"by large weights": {listen("TCP", 80, leastConnections, two(8080, `, "weight": 1`)+
			`,{"address": "192.0.2.9", "protocol_port": 8080, "weight": 256}`, ""),
			"[80:8080/tcp] [192.0.2.7 weight 1 192.0.2.8 weight 1 192.0.2.9 weight 100]  least-flows"},
		"by weight 0": {listen("TCP", 80, roundRobin, two(8080, "")+
			`,{"address": "192.0.2.9", "protocol_port": 8080, "weight": 0}`, ""),
			"[80:8080/tcp] [192.0.2.7 192.0.2.8]  round-robin"},
		"by ports of their own": {listen("TCP", 80, roundRobin, two(8080, "")+
			`,{"address": "192.0.2.7", "protocol_port": 8081}`, ""),
			"[80:8080/tcp] [192.0.2.7:8080 192.0.2.8:8080 192.0.2.7:8081]  round-robin"},
		"two listeners": {listen("TCP", 80, roundRobin, two(8080, ""), "") + "," +
			listen("TCP", 443, roundRobin, `{"address": "192.0.2.8", "protocol_port": 8443}`, monitor),
			"[80:8080/tcp 443:8443/tcp] [192.0.2.8]  round-robin http :8443/ok 5 2 3"},
		"by UDP, monitored": {listen("UDP", 53, sourceIPPort, two(53, ""), monitorOf("UDP-CONNECT")),
			"[53:53/udp] [192.0.2.7 192.0.2.8]  hash udp :0 5 2 3"},
		"pinged": {listen("UDP", 53, sourceIPPort, two(53, ""), monitorOf("PING")),
			"[53:53/udp] [192.0.2.7 192.0.2.8]  hash ping :0 5 2 3"},
		"two, pinged": {listen("TCP", 80, roundRobin, two(80, ""), "") + "," +
			listen("TCP", 81, roundRobin, two(81, ""), monitorOf("PING")),
			"[80:80/tcp 81:81/tcp] [192.0.2.7 192.0.2.8]  round-robin ping :0 5 2 3"},
		"two, monitored by UDP": {listen("TCP", 80, roundRobin, two(80, ""), "") + "," +
			listen("UDP", 53, roundRobin, two(53, ""), monitorOf("UDP-CONNECT")),
			"[80:80/tcp 53:53/udp] [192.0.2.7 192.0.2.8]  round-robin udp :53 5 2 3"},
		"a pool that is down": {listen("TCP", 80, roundRobin, two(8080, ""),
			`, "admin_state_up": false`), "[] [] zero hash"},
		"monitored": {listen("TCP", 80, roundRobin, two(8080, ""), monitor),
			"[80:8080/tcp] [192.0.2.7 192.0.2.8]  round-robin http :0/ok 5 2 3"},
	} {
		d := made(t, `{"listeners": [`+c.listeners+`]}`)
		s, err := d.Spec("acme")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := summary(s); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
		back, ok := Of(&s)
		if !ok || len(back.Listeners) != len(d.Listeners) || back.key != testKey || s.Tenant != "acme" {
			t.Errorf("%s: the document is read back as %+v", name, back)
		}
	}
}

// A word that a service lacks is refused with its name.
func TestWhatALoadBalancerRefuses(t *testing.T) {
	tcp80 := listen("TCP", 80, roundRobin, two(8080, ""), "")
	monitored := func(words string) string {
		return `{"listeners": [` + listen("TCP", 80, roundRobin, two(8080, ""),
			`, "healthmonitor": {"delay": 1, "timeout": 1, "max_retries": 1, `+words+`}`) + `]}`
	}
	for body, want := range map[string]string{
		`{"vip_address": "203.0.113.50"}`: "loadbalancer.vip_address", `{"flavor_id": "x"}`: "flavor_id",
		`{"provider": "amphora"}`: "want pando or octavia", `{"nmae": "web"}`: "loadbalancer.nmae",
		`{"name": 7}`: "want a text", `{"name": "` + strings.Repeat("x", 256) + `"}`: "at most 255",
		`{"listeners": [{"protocol": "HTTP", "protocol_port": 80}]}`: "" +
			`"HTTP": want TCP or UDP`,
		`{"listeners": [{"protocol": "TCP", "protocol_port": 0}]}`: "" +
			"want 1 to 65535",
		`{"listeners": [{"protocol": "TCP"}]}`: "" +
			"want protocol and protocol_port",
		`{"listeners": [` + tcp80 + "," + tcp80 + `]}`: "" +
			"has the port 80",
		`{"listeners": [{"protocol": "TCP", "protocol_port": 80, "connection_limit": 9}]}`: "want -1",
		`{"listeners": [{"protocol": "TCP", "protocol_port": 80, "allowed_cidrs": ["10.0.0.0/8"]}]}`: "" +
			"allowed_cidrs",
		`{"listeners": [` + listen("TCP", 80, roundRobin, two(1, ""),
			`, "session_persistence": {"type": "APP_COOKIE"}`) + `]}`: "want SOURCE_IP",
		`{"listeners": [` + listen("TCP", 80, roundRobin, two(1, ""),
			`, "session_persistence": {"type": "SOURCE_IP", "persistence_timeout": 9}`) + `]}`: "" +
			"persistence_timeout",
		`{"listeners": [` + listen("TCP", 80, roundRobin, two(1, ""),
			`, "session_persistence": "SOURCE_IP"`) + `]}`: "want an object",
		`{"listeners": [` + tcp80 + "," + listen("TCP", 81, roundRobin, two(8081, ""),
			`, "session_persistence": {"type": "SOURCE_IP"}`) + `]}`: "only some of the pools",
		`{"listeners": [` + listen("TCP", 80, roundRobin, two(1, `, "backup": true`), "") + `]}`: "" +
			"member.backup",
		`{"listeners": [` + listen("TCP", 80, roundRobin, two(1, "")+","+two(1, ""), "") + `]}`: "" +
			"has a member 192.0.2.7 port 1",
		`{"listeners": [` + listen("TCP", 80, roundRobin,
			`{"address": "127.0.0.1", "protocol_port": 1}`, "") + `]}`: "no meaning on another machine",
		monitored(`"type": "UDP-CONNECT"`): `"UDP-CONNECT": want TCP or HTTP or PING`,
		`{"listeners": [` + listen("UDP", 53, sourceIPPort, two(53, ""), `, "healthmonitor": {"delay": 1,
			"timeout": 1, "max_retries": 1, "type": "TCP"}`) + `]}`: "want UDP-CONNECT or PING",
		monitored(`"type": "HTTP", "expected_codes": "404"`): `"404": want 200 or 200-399`,
		monitored(`"type": "HTTP", "domain_name": "web"`):    "healthmonitor.domain_name",
		monitored(`"type": "TCP", "delay": 0`):               "want 1 to",
		// Their pools are not one set of machines.
		`{"listeners": [` + tcp80 + "," + listen("TCP", 443, roundRobin,
			`{"address": "192.0.2.9", "protocol_port": 8443}`, "") + `]}`: "no machine in common",
		`{"listeners": [` + tcp80 + "," + listen("TCP", 81, roundRobin, two(8080, ""), "") + `]}`: "" +
			"replies would be ambiguous",
		`{"listeners": [` + tcp80 + "," + listen("TCP", 81, leastConnections,
			two(8081, ""), "") + `]}`: "" +
			"one lb_algorithm",
	} {
		d, err := tried(body)
		if err == nil {
			_, err = d.Spec("acme")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

// A document has a bound: it is stored with each revision.
func TestADocumentHasABound(t *testing.T) {
	var members []string
	for n := range pando.ExternalsMax {
		members = append(members, fmt.Sprintf(`{"name": %q, "address": "192.0.2.%d",
			"protocol_port": 80}`, strings.Repeat("x", textMax), n))
	}
	d := made(t, `{"listeners": [`+listen("TCP", 80, roundRobin, strings.Join(members, ","), "")+`]}`)
	if _, err := d.Spec("acme"); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("256 members with long names: %v", err)
	}
	for n := range d.Pools[0].Members {
		d.Pools[0].Members[n].Name = ""
	}
	s, err := d.Spec("acme")
	if err != nil || len(s.Endpoints) != pando.ExternalsMax {
		t.Errorf("256 members without names: %v", err)
	}
}

// A batch changes members in place, so that they keep their instances.
func TestABatchReplacesMembers(t *testing.T) {
	d := made(t, `{"listeners": [`+listen("TCP", 80, roundRobin, two(8080, ""), "")+`]}`)
	p := &d.Pools[0]
	before := p.Members[1].Number
	e := Edit{Pool: p.Number, Body: []byte(`{"members": [{"address": "192.0.2.8",
		"protocol_port": 8080, "weight": 5}, {"address": "192.0.2.9", "protocol_port": 8080}]}`)}
	e.More = true
	if _, err := e.Replace(&d); err != nil || len(p.Members) != 3 || p.Members[1].Weight != 5 {
		t.Errorf("%+v %v", p.Members, err)
	}
	e.More = false
	if _, err := e.Replace(&d); err != nil || len(p.Members) != 2 || p.Members[0].Number != before {
		t.Errorf("%+v %v", p.Members, err)
	}
	e.Body = []byte(`{"members": [` + two(8080, "") + "," + two(8080, "") + `]}`)
	if _, err := e.Replace(&d); !errors.Is(err, pando.ErrExists) {
		t.Errorf("a member twice: %v", err)
	}
}

// The status of a member is that of the instance which stands for it.
func TestTheStatusOfAMember(t *testing.T) {
	d := made(t, `{"listeners": [`+listen("TCP", 80, roundRobin, two(8080, ""),
		`, "healthmonitor": {"type": "TCP", "delay": 1, "timeout": 1, "max_retries": 1}`)+`]}`)
	s, err := d.Spec("acme")
	if err != nil {
		t.Fatal(err)
	}
	st := pando.ServiceStatus{Spec: &s}
	st.ServiceKey, st.Target, st.Current = s.Key(), 2, 1
	state := func() string {
		v, ok := NewView(st)
		if !ok {
			t.Fatal("no load balancer")
		}
		p := v.Pools[0]
		return fmt.Sprint(v.Member(p, p.Members[0])["operating_status"], " ",
			v.Member(p, p.Members[1])["operating_status"], " ", v.Pool(p)["operating_status"], " ",
			v.LoadBalancer()["operating_status"], " ", v.LoadBalancer()["provisioning_status"])
	}
	if got := state(); got != "OFFLINE OFFLINE OFFLINE OFFLINE PENDING_UPDATE" {
		t.Error(got)
	}
	for n, weight := range []int{100, 0} {
		i := pando.Instance{Ordinal: n + 1, Weight: weight, Phase: pando.PhaseInRotation}
		st.Instances = append(st.Instances, pando.InstanceStatus{Instance: i})
	}
	st.Current = 2
	if got := state(); got != "ONLINE ERROR DEGRADED DEGRADED ACTIVE" {
		t.Error(got)
	}
	st.Instances[0].Weight = 0
	if got := state(); got != "ERROR ERROR ERROR ERROR ACTIVE" {
		t.Error(got)
	}
	st.Removing = true
	if got := state(); !strings.HasSuffix(got, "PENDING_DELETE") {
		t.Error(got)
	}
}

// A list is chosen by the words of its objects and cut into pages.
func TestAListIsChosen(t *testing.T) {
	all := func() []Object {
		return []Object{{"id": "b", "name": "x", "tags": []string{"t"}},
			{"id": "a", "name": "y", "pools": []Object{{"id": "p"}}}, {"id": "c", "name": "x"}}
	}
	for query, want := range map[string]string{
		"": "[a b c] ", "name=x": "[b c] ", "tags=t": "[b] ", "limit=2": "[a b] b",
		"limit=2&marker=b": "[c] ", "sort_key=name&sort_dir=desc": "[a c b] ", "pool_id=p": "[a] ",
		"nmae=x": "no \"nmae\"", "limit=0": "want a number from 1", "marker=z": "not in the list",
	} {
		q, _ := url.ParseQuery(query)
		p, err := Choose(PoolKind, all(), q)
		var ids []string
		for _, o := range p.Objects {
			ids = append(ids, o["id"].(string))
		}
		if got := fmt.Sprint(ids, " ", p.Next); err == nil && got != want ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s %v, want %s", query, got, err, want)
		}
	}
}
