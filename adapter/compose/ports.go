package compose

import (
	"cmp"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
)

// ports converts the ports. In Compose, other services reach every port of a container by the
// program's own number, and the host's addresses have the published ones. So have Pando's VIP and
// the hosts' own addresses.
func (c *converter) ports(s types.ServiceConfig, out *pando.Spec) {
	at := []string{"services", s.Name, "ports"}
	if s.NetworkMode == "host" {
		if len(s.Ports) > 0 {
			c.warn(at, "are left out: with network_mode: host the program listens at the host's address")
		}
		return
	}
	if len(s.Ports) > portsMax {
		c.deny(at, "has %d ports: at most %d", len(s.Ports), portsMax)
		return
	}
	for _, p := range s.Ports {
		protocol := pando.Protocol(cmp.Or(p.Protocol, "tcp"))
		if protocol != pando.TCP && protocol != pando.UDP {
			c.deny(at, "%s: a port is tcp or udp", p.Protocol)
			continue
		}
		port := pando.Port{Published: uint16(p.Target), Target: uint16(p.Target), Protocol: protocol}
		port.Host = c.hostPort(p, protocol, at)
		twice := func(o pando.Port) bool { return o.Host == port.Host && o.Protocol == protocol }
		if n := slices.IndexFunc(out.Ports, twice); port.Host != 0 && n >= 0 &&
			out.Ports[n].Target != port.Target {
			c.deny(at, "%d/%s is published twice: choose another port", port.Host, protocol)
			continue
		}
		c.publish(out, port, at)
	}
	for _, text := range s.Expose {
		c.expose(text, out, []string{"services", s.Name, "expose"})
	}
	c.neighbours(s, out)
}

// portsMax bounds the ports of one service, as the tables of a host do.
const portsMax = 4096

// expose adds a port, or a range of ports, that only other services reach.
func (c *converter) expose(text string, out *pando.Spec, at []string) {
	numbers, protocol, _ := strings.Cut(text, "/")
	first, last, two := strings.Cut(numbers, "-")
	from, err := strconv.ParseUint(first, 10, 16)
	to := from
	if two && err == nil {
		to, err = strconv.ParseUint(last, 10, 16)
	}
	if err != nil || from == 0 || to < from || to-from >= portsMax {
		c.deny(at, "%s: want a port or a range of ports, such as 8080 or 8080-8090", text)
		return
	}
	for n := from; n <= to; n++ {
		p := pando.Port{Published: uint16(n), Target: uint16(n),
			Protocol: pando.Protocol(cmp.Or(protocol, "tcp"))}
		if !leads(*out, p) {
			out.Ports = append(out.Ports, p)
		}
	}
}

// hostPort returns the port of the hosts' own addresses that leads to a port, or 0.
func (c *converter) hostPort(p types.ServicePortConfig, protocol pando.Protocol, at []string) uint16 {
	if p.Published == "" {
		return 0 // Docker would choose a free one
	}
	first, _, many := strings.Cut(p.Published, "-")
	n, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		c.deny(at, "%s: choose one port to publish %d at", p.Published, p.Target)
		return 0
	}
	if n == 0 {
		return 0
	}
	if many {
		c.warn(at, "%d is published at %d, the first one of %s", p.Target, n, p.Published)
	}
	host := pando.HostPort{Port: uint16(n), Protocol: protocol}
	switch a, _ := netip.ParseAddr(p.HostIP); {
	case a.IsLoopback():
		c.warn(at, "port %d of %s is left out: programs of a host reach the service at port %d of its VIP",
			n, p.HostIP, p.Target)
		return 0
	case a.IsValid() && !a.IsUnspecified():
		c.warn(at, "port %d of %s is left out: publish: {host: %d} of a spec publishes it at every "+
			"address of the hosts", n, p.HostIP, n)
		return 0
	case host.Port >= pando.OwnPortFirst && host.Port <= pando.OwnPortLast:
		c.warn(at, "port %s of the hosts is left out: it is Pando's own; the VIP has port %d", host,
			p.Target)
		return 0
	}
	if other, taken := c.taken[host]; taken && other != at[1] {
		c.deny(at, "port %s of the hosts is also of %s: choose another one", host, other)
	}
	if c.taken == nil {
		c.taken = map[pando.HostPort]string{}
	}
	c.taken[host] = at[1]
	return host.Port
}

// publish adds a port. A port of the program has one port of the hosts.
func (c *converter) publish(out *pando.Spec, p pando.Port, at []string) {
	same := func(o pando.Port) bool { return o.Target == p.Target && o.Protocol == p.Protocol }
	n := slices.IndexFunc(out.Ports, same)
	switch {
	case n < 0:
		out.Ports = append(out.Ports, p)
	case out.Ports[n].Host == 0:
		out.Ports[n].Host = p.Host
	case p.Host != 0 && p.Host != out.Ports[n].Host:
		c.warn(at, "%d is left out: %d of the hosts leads to %d already", p.Host, out.Ports[n].Host,
			p.Target)
	}
}

// leads reports whether a spec publishes a port of the program already.
func leads(s pando.Spec, p pando.Port) bool {
	return slices.ContainsFunc(s.Ports, func(o pando.Port) bool {
		return o.Protocol == p.Protocol && o.Target == p.Target
	})
}

// uses returns the ports of a service that other services write behind one of its names, each with
// the service that does.
func (c *converter) uses(s types.ServiceConfig, aliases []string) map[uint16]string {
	var names []string
	for _, name := range append([]string{s.Name, s.Hostname}, aliases...) {
		if name != "" {
			names = append(names, regexp.QuoteMeta(name))
		}
	}
	one := `(?i)(?:^|[^A-Za-z0-9_.-])(?:` + strings.Join(names, "|") + `)`
	named := regexp.MustCompile(one + `:([0-9]{2,5})\b`)
	alone := regexp.MustCompile(`(?i)^(?:` + strings.Join(names, "|") + `)$`)
	out := map[uint16]string{}
	note := func(text, by string) {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 && out[uint16(n)] == "" {
			out[uint16(n)] = by
		}
	}
	for _, by := range c.project.ServiceNames() {
		if by == s.Name {
			continue
		}
		other := c.project.Services[by]
		for _, text := range c.wordsOf(other) {
			for _, m := range named.FindAllStringSubmatch(text, -1) {
				note(m[1], by)
			}
		}
		for key, value := range other.Environment { // DB_HOST: db, DB_PORT: 5432
			prefix, _, ok := cutHost(key)
			if port := other.Environment[prefix+"PORT"]; ok && value != nil && port != nil &&
				alone.MatchString(*value) {
				note(*port, by)
			}
		}
	}
	return out
}

// cutHost splits the name of a variable with the name of a host: DB_HOST is DB_ and HOST.
func cutHost(key string) (prefix, word string, ok bool) {
	for _, word := range []string{"HOSTNAME", "HOST", "SERVER", "ADDR", "ADDRESS", "ENDPOINT"} {
		if prefix, ok := strings.CutSuffix(key, word); ok {
			return prefix, word, true
		}
	}
	return "", "", false
}

// usual are the ports of well-known servers, by the last part of the image's name.
var usual = map[string][]uint16{
	"postgres": {5432}, "postgresql": {5432}, "postgis": {5432}, "timescaledb": {5432},
	"timescaledb-ha": {5432}, "pgvector": {5432}, "paradedb": {5432}, "pgbouncer": {5432, 6432},
	"mysql": {3306}, "mariadb": {3306}, "percona": {3306}, "percona-server": {3306},
	"redis": {6379}, "redis-stack": {6379}, "redis-stack-server": {6379}, "valkey": {6379},
	"keydb": {6379}, "dragonfly": {6379}, "mongo": {27017}, "mongodb": {27017},
	"mongodb-community-server": {27017}, "memcached": {11211}, "rabbitmq": {5672, 15672},
	"nats": {4222, 8222}, "elasticsearch": {9200, 9300}, "opensearch": {9200, 9300},
	"minio": {9000, 9001}, "clickhouse-server": {8123, 9000}, "clickhouse": {8123, 9000},
	"cassandra": {9042}, "scylla": {9042}, "influxdb": {8086}, "etcd": {2379}, "couchdb": {5984},
	"neo4j": {7474, 7687}, "zookeeper": {2181}, "kafka": {9092}, "cp-kafka": {9092},
	"cp-zookeeper": {2181}, "redpanda": {9092}, "eclipse-mosquitto": {1883}, "meilisearch": {7700},
	"typesense": {8108}, "qdrant": {6333, 6334}, "weaviate": {8080, 50051}, "chroma": {8000},
	"nginx": {80}, "httpd": {80}, "caddy": {80}, "traefik": {80}, "haproxy": {80},
	"mailpit": {1025, 8025}, "mailhog": {1025, 8025}, "browserless": {3000}, "chrome": {3000},
	"chromium": {3000}, "gotenberg": {3000}, "tika": {9998}, "soketi": {6001}, "loki": {3100},
	"prometheus": {9090}, "grafana": {3000}, "temporal": {7233}, "auto-setup": {7233},
	"surrealdb": {8000}, "arangodb": {8529}, "rethinkdb": {28015}, "ollama": {11434},
	"docker-socket-proxy": {2375},
}

// neighbours publishes the ports of a service that its file names elsewhere: those that others
// write behind its name, and the usual ones of its image. In Compose, a port needs no word.
func (c *converter) neighbours(s types.ServiceConfig, out *pando.Spec) {
	at, had := []string{"services", s.Name}, len(out.Ports)
	uses := c.uses(s, out.Aliases)
	for _, n := range sortedKeys(uses) {
		p := pando.Port{Published: n, Target: n, Protocol: pando.TCP}
		if leads(*out, p) || c.published(s, n) {
			continue
		}
		out.Ports = append(out.Ports, p)
		c.warn(at, "%s uses %s:%d: it is published; `expose` names others", uses[n], s.Name, n)
	}
	name, _, _ := strings.Cut(path.Base(s.Image), "@")
	name, _, _ = strings.Cut(name, ":")
	for _, n := range usual[name] {
		p := pando.Port{Published: n, Target: n, Protocol: pando.TCP}
		if leads(*out, p) || len(uses) > 0 && had == 0 {
			continue
		}
		out.Ports = append(out.Ports, p)
		if had == 0 {
			c.warn(at, "has no ports: %d is published, the usual one of %s; `expose` names others", n, name)
		} else {
			c.warn(at, "%d is published as well, a usual one of %s; `expose` names others", n, name)
		}
	}
	if len(out.Ports) == 0 && needed(c.project, s.Name) {
		c.warn(at, "names no ports: others reach those that its image exposes; `expose` names others")
	}
}

// published reports whether a number is only the hosts' port of another port of the service:
// programs that use it behind the service's name mean the host.
func (c *converter) published(s types.ServiceConfig, n uint16) bool {
	return slices.ContainsFunc(s.Ports, func(p types.ServicePortConfig) bool {
		return p.Published == strconv.Itoa(int(n)) && p.Target != uint32(n)
	})
}

// needed reports whether another service waits until this one serves.
func needed(p *types.Project, name string) bool {
	for _, s := range p.Services {
		if d, ok := s.DependsOn[name]; ok &&
			d.Condition != types.ServiceConditionCompletedSuccessfully {
			return true
		}
	}
	return false
}

// wordsOf returns the texts in which a service may name another one.
func (c *converter) wordsOf(s types.ServiceConfig) []string {
	out := slices.Concat([]string(s.Command), []string(s.Entrypoint))
	for _, k := range sortedKeys(s.Environment) {
		if v := s.Environment[k]; v != nil {
			out = append(out, *v)
		}
	}
	if s.HealthCheck != nil {
		out = append(out, s.HealthCheck.Test...)
	}
	for _, ref := range s.Configs {
		out = append(out, c.project.Configs[ref.Source].Content)
	}
	return out
}
