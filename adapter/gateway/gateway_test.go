package gateway

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// gate is a Gateway with the listeners foo (TCP 8080) and bar (UDP 53), and the backends a and b.
const gate = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: pando
  listeners:
  - {name: foo, protocol: TCP, port: 8080, allowedRoutes: {kinds: [{kind: TCPRoute}]}}
  - {name: bar, protocol: UDP, port: 53}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-1, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
ports: [{name: "", port: 80, protocol: TCP}]
endpoints:
- {addresses: [192.0.2.1], conditions: {ready: true}, nodeName: n1}
- {addresses: [192.0.2.2]}
- {addresses: [192.0.2.3], conditions: {ready: false}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: b-1, labels: {kubernetes.io/service-name: b}}
ports: [{name: main, port: 9090}, {name: u, port: 9091, protocol: UDP}]
endpoints: [{addresses: ["2001:db8::7"]}]
---
apiVersion: v1
kind: Service
metadata: {name: b}
spec: {clusterIP: 10.0.0.9, ports: [{name: main, port: 80, targetPort: web}, {name: u, port: 80, protocol: UDP}]}
---
`

// leads returns a route to backends.
func leads(kind, section, backends string) string {
	return fmt.Sprintf(`apiVersion: gateway.networking.k8s.io/v1alpha2
kind: %s
metadata: {name: app}
spec:
  parentRefs: [{name: edge%s}]
  rules: [{backendRefs: [%s]}]
`, kind, section, backends)
}

func TestARouteBecomesAService(t *testing.T) {
	for _, c := range []struct{ name, route, port, endpoints string }{
		{"one backend", leads("TCPRoute", ", sectionName: foo", "{name: a, port: 80}"), "8080:80/tcp",
			"192.0.2.1:80, 192.0.2.2:80"},
		{"by the number of the listener", leads("TCPRoute", ", port: 8080", "{name: a, port: 80}"),
			"8080:80/tcp", "192.0.2.1:80, 192.0.2.2:80"},
		{"the kind chooses the listener", leads("UDPRoute", "", "{name: b, port: 80}"), "53:9091/udp",
			"[2001:db8::7]:9091"},
		{"weights are shared by the endpoints of a backend", leads("TCPRoute", "",
			"{name: a, port: 80, weight: 1}, {name: b, port: 80, weight: 9}"), "8080:80/tcp",
			"192.0.2.1:80 weight 6, 192.0.2.2:80 weight 6, [2001:db8::7]:9090 weight 100"},
		{"a backend of weight 0 gets nothing", leads("TCPRoute", "",
			"{name: a, port: 80, weight: 0}, {name: b, port: 80}"), "8080:9090/tcp", "[2001:db8::7]:9090"},
	} {
		r, err := Parse("gateway.yaml", []byte(gate+c.route))
		if err != nil || len(r.Specs) != 1 {
			t.Errorf("%s: %d specs, %v", c.name, len(r.Specs), err)
			continue
		}
		s := r.Specs[0]
		var all []string
		for _, e := range s.Endpoints {
			all = append(all, e.String())
		}
		p := s.Ports[0]
		port := fmt.Sprintf("%d:%d/%s", p.Published, p.Target, p.Protocol)
		if s.Name != "app" || s.Tenant != "" || port != c.port || strings.Join(all, ", ") != c.endpoints {
			t.Errorf("%s: %s of %q with %s to %v", c.name, s.Name, s.Tenant, port, all)
		}
		if _, err := spec.Parse("pando.yaml", spec.Format(s), "/"); err != nil {
			t.Errorf("%s: the printed spec: %v", c.name, err)
		}
		if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Error(), "nothing is published") {
			t.Errorf("%s: warnings %v, want one about the other listener", c.name, r.Warnings)
		}
	}
}

// A port of a Service is a number and a protocol, and a port of a slice is a name and a protocol, also
// in JSON.
func TestAPortIsAlsoAProtocol(t *testing.T) {
	const services = `{"kind":"Service","metadata":{"name":"dns"},"spec":{"ports":[
{"name":"dt","port":53},{"name":"d","port":53,"protocol":"UDP"}]}}
---
{"kind":"EndpointSlice","metadata":{"name":"dns-1","labels":{"kubernetes.io/service-name":"dns"}},
"ports":[{"name":"dt","port":1053,"protocol":"TCP"},{"name":"d","port":1054,"protocol":"UDP"}],
"endpoints":[{"addresses":["192.0.2.5"]}]}
---
{"kind":"EndpointSlice","metadata":{"name":"e-1","labels":{"kubernetes.io/service-name":"e"}},
"ports":[{"name":"","port":7,"protocol":"UDP"},{"name":"t","port":7}],
"endpoints":[{"addresses":["192.0.2.6"]}]}
---
`
	for _, c := range []struct{ kind, backend, want string }{
		{"UDPRoute", "{name: dns, port: 53}", "192.0.2.5:1054"},
		{"TCPRoute", "{name: dns, port: 53}", "192.0.2.5:1053"},
		{"UDPRoute", "{name: e, port: 7}", "192.0.2.6:7"}, // without its Service, by the number
		{"TCPRoute", "{name: e, port: 7}", "192.0.2.6:7"},
		{"UDPRoute", "{name: a, port: 80}", "no ready endpoint with the port 80/UDP"},
	} {
		r, err := Parse("g.yaml", []byte(gate+services+leads(c.kind, "", c.backend)))
		got := fmt.Sprint(err)
		if err == nil {
			got = r.Specs[0].Endpoints[0].String()
		}
		if got != c.want && !strings.Contains(got, c.want) {
			t.Errorf("%s to %s: %s, want %s", c.kind, c.backend, got, c.want)
		}
	}
}

// The namespace is the tenant, and a route of two listeners has a service for each.
func TestARouteOfSeveralListeners(t *testing.T) {
	text := strings.ReplaceAll(gate+leads("TCPRoute", "", "{name: a, port: 80}"), "metadata: {",
		"metadata: {namespace: acme, ")
	text = strings.Replace(text, "protocol: UDP, port: 53", "protocol: TCP, port: 81", 1)
	r, err := Parse("gateway.yaml", []byte(text))
	if err != nil || len(r.Specs) != 2 || len(r.Warnings) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	for n, want := range []string{"acme/app-foo", "acme/app-bar"} {
		if got := r.Specs[n].Key().String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// kubectl prints objects as a List.
func TestAListOfObjects(t *testing.T) {
	var list strings.Builder
	list.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for one := range strings.SplitSeq(gate+leads("TCPRoute", "", "{name: a, port: 80}"), "---\n") {
		list.WriteString("- " + strings.ReplaceAll(strings.TrimRight(one, "\n"), "\n", "\n  ") + "\n")
	}
	if !Is([]byte(list.String())) {
		t.Error("it is not recognised")
	}
	if r, err := Parse("list.yaml", []byte(list.String())); err != nil || len(r.Specs) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAManifestThatPandoCannotServe(t *testing.T) {
	ok := leads("TCPRoute", "", "{name: a, port: 80}")
	for _, c := range []struct{ name, text, want string }{
		{"another protocol", strings.Replace(gate, "protocol: TCP, port: 8080",
			"protocol: HTTP, port: 8080", 1) + ok,
			`g.yaml:7:27: spec.listeners[0].protocol: "HTTP": want TCP or UDP`},
		{"an HTTPRoute", gate + leads("HTTPRoute", "", "{name: a, port: 80}"), "publish a proxy"},
		{"an unknown kind", gate + "apiVersion: v1\nkind: Pod\n", `"Pod": want Gateway`},
		{"an unknown word", gate + strings.Replace(ok, "backendRefs", "filters", 1),
			`unknown field "filters"`},
		{"TLS of a listener", strings.Replace(gate, "port: 53", "port: 53, tls: {mode: Terminate}",
			1) + ok, "spec.listeners[1].tls: Pando ends no TLS"},
		{"a listener for TLS", strings.Replace(gate, "protocol: TCP, port: 8080", "protocol: TLS, port: 443, "+
			"hostname: a.example, tls: {mode: Passthrough}", 1) + ok,
			`spec.listeners[0].protocol: "TLS": want TCP or UDP`},
		{"no slice", gate + leads("TCPRoute", "", "{name: none, port: 80}"),
			"kubectl get endpointslices -l kubernetes.io/service-name=none"},
		{"another port", gate + leads("TCPRoute", "", "{name: a, port: 81}"),
			"a has no ready endpoint with the port 81"},
		{"all of weight 0", gate + leads("TCPRoute", "", "{name: a, port: 80, weight: 0}"),
			"no backend has a weight above 0"},
		{"a negative weight", gate + leads("TCPRoute", "", "{name: a, port: 80, weight: -1}"),
			"want 0 or more"},
		{"another namespace", gate + leads("TCPRoute", "", "{name: a, port: 80, namespace: b}"),
			"of another namespace"},
		{"no Service", gate + leads("TCPRoute", "", "{name: a, port: 80, kind: Pod}"), "want a Service"},
		{"two rules", gate + strings.Replace(ok, "rules: [", "rules: [{backendRefs: []}, ", 1),
			"2 rules"},
		{"two routes", gate + ok + "---\n" + strings.Replace(ok, "name: app", "name: app2", 1),
			"has the route app already"},
		{"no gateway", ok, "no Gateway"},
		{"no address", strings.Replace(gate, "192.0.2.1]", "example.com]", 1) + ok,
			"want an IP address"},
		{"a loopback address", strings.Replace(gate, "192.0.2.1]", "127.0.0.1]", 1) + ok,
			"no meaning on another machine"},
		{"a name that is no label", gate + strings.Replace(ok, "name: app", "name: app.v1", 1),
			"service name"},
		{"no spec", gate + "kind: TCPRoute\nmetadata: {name: x}\n", "x has no spec"},
		{"an alias", gate + "kind: GatewayClass\na: &a [x]\nb: *a\n", "aliases are refused"},
		{"bad YAML", gate + "a: [", "g.yaml:"},
	} {
		_, err := Parse("g.yaml", []byte(c.text))
		if err == nil || !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

func TestOnlyManifestsAreManifests(t *testing.T) {
	for text, want := range map[string]bool{
		gate: true, "name: web\ncommand: [x]\n": false, "services: {}": false, "": false,
		"# apiVersion: gateway.networking.k8s.io/v1\nname: web":                                    false,
		`"apiVersion": "gateway.networking.k8s.io/v1"`:                                             true,
		`{"kind":"List","items":[{"kind":"Gateway","apiVersion":"gateway.networking.k8s.io/v1"}]}`: true,
		"{\n  \"apiVersion\" : \"gateway.networking.k8s.io/v1\"\n}":                                true,
		"# {apiVersion: gateway.networking.k8s.io/v1}\nname: web":                                  false,
	} {
		if Is([]byte(text)) != want {
			t.Errorf("%.40q: want %v", text, want)
		}
	}
}

// Any text ends with specs that deploy accepts, or with problems.
func FuzzParse(f *testing.F) {
	f.Add(gate + leads("TCPRoute", "", "{name: a, port: 80}"))
	f.Add("kind: List\nitems: [{kind: List, items: [{}]}]")
	f.Add("kind: Gateway\nspec: [x]\n---\nkind: TCPRoute\nspec: {rules: [{}], parentRefs: [{}]}")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse("g.yaml", []byte(text))
		if err != nil && !errors.Is(err, pando.ErrInvalid) {
			t.Fatalf("%v", err)
		}
		for _, s := range r.Specs {
			if err := spec.Check(s.WithDefaults()); err != nil {
				t.Fatal(err)
			}
		}
	})
}
