package compose

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
)

// ports converts the ports. In Compose, other services reach every port of a container, and the
// host reaches the published ones. In Pando both reach the ports of the VIP, and a port of the
// program has one number there: the one that other services use, or else the published one.
func (c *converter) ports(s types.ServiceConfig, out *pando.Spec) {
	at := []string{"services", s.Name, "ports"}
	if s.NetworkMode == "host" {
		if len(s.Ports) > 0 {
			c.warn(at, "are left out: with network_mode: host the program listens at the host's address")
		}
		return
	}
	for _, p := range s.Ports {
		protocol := pando.Protocol(cmp.Or(p.Protocol, "tcp"))
		if protocol != pando.TCP && protocol != pando.UDP {
			c.deny(at, "%s: a port is tcp or udp", p.Protocol)
			continue
		}
		published := cmp.Or(p.Published, strconv.Itoa(int(p.Target)))
		n, err := strconv.ParseUint(published, 10, 16)
		if err != nil || n == 0 {
			c.deny(at, "%s: choose one port to publish %d at", published, p.Target)
			continue
		}
		port := pando.Port{Published: uint16(n), Target: uint16(p.Target), Protocol: protocol}
		if user := c.user(s.Name, port.Target); user != "" && port.Published != port.Target {
			c.warn(at, "it is published at %d and not at %s, because %s uses %s:%d",
				p.Target, published, user, s.Name, p.Target)
			port.Published = port.Target
		}
		c.publish(out, port, at)
		if p.HostIP != "" && p.HostIP != "0.0.0.0" && p.HostIP != "::" {
			c.warn(at, "the address %s is left out: a service has an address of its own, which the hosts "+
				"reach", p.HostIP)
		}
	}
	for _, text := range s.Expose {
		number, protocol, _ := strings.Cut(text, "/")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 {
			c.deny([]string{"services", s.Name, "expose"}, "%s: write each port for itself", text)
			continue
		}
		p := pando.Port{Published: uint16(n), Target: uint16(n),
			Protocol: pando.Protocol(cmp.Or(protocol, "tcp"))}
		if !leads(*out, p) {
			out.Ports = append(out.Ports, p)
		}
	}
	if len(out.Ports) == 0 {
		c.guess(s, out)
	}
}

// publish adds a port. Two targets of one published port are an error, and so are two published
// ports of one target.
func (c *converter) publish(out *pando.Spec, p pando.Port, at []string) {
	for _, other := range out.Ports {
		if other == p {
			return
		}
		if other.Published == p.Published && other.Protocol == p.Protocol {
			c.deny(at, "%d/%s is published twice: choose another port", p.Published, p.Protocol)
			return
		}
		if other.Target == p.Target && other.Protocol == p.Protocol {
			c.warn(at, "%d is left out: %d leads to %d already", p.Published, other.Published, p.Target)
			return
		}
	}
	out.Ports = append(out.Ports, p)
}

// leads reports whether a spec publishes a port of the program already.
func leads(s pando.Spec, p pando.Port) bool {
	return slices.ContainsFunc(s.Ports, func(o pando.Port) bool {
		return o.Protocol == p.Protocol && (o.Target == p.Target || o.Published == p.Published)
	})
}

// users returns the ports of a service that other services write behind its name, each with the
// service that does.
func (c *converter) users(name string) map[uint16]string {
	named := regexp.MustCompile(`(?:^|[^A-Za-z0-9_.-])` + regexp.QuoteMeta(name) + `:([0-9]{2,5})\b`)
	out := map[uint16]string{}
	for _, other := range c.project.ServiceNames() {
		if other == name {
			continue
		}
		for _, text := range wordsOf(c.project.Services[other]) {
			for _, m := range named.FindAllStringSubmatch(text, -1) {
				n, err := strconv.ParseUint(m[1], 10, 16)
				if err == nil && n > 0 && out[uint16(n)] == "" {
					out[uint16(n)] = other
				}
			}
		}
	}
	return out
}

// user returns the service that uses a port of another one, or "".
func (c *converter) user(name string, port uint16) string { return c.users(name)[port] }

// usual are the ports of well-known servers, by the last part of the image's name.
var usual = map[string]uint16{
	"postgres": 5432, "postgis": 5432, "timescaledb": 5432, "pgvector": 5432, "mysql": 3306,
	"mariadb": 3306, "percona": 3306, "redis": 6379, "valkey": 6379, "keydb": 6379, "mongo": 27017,
	"memcached": 11211, "rabbitmq": 5672, "nats": 4222, "elasticsearch": 9200, "opensearch": 9200,
	"minio": 9000, "clickhouse-server": 8123, "cassandra": 9042, "influxdb": 8086, "etcd": 2379,
	"nginx": 80, "httpd": 80, "caddy": 80, "traefik": 80, "mailpit": 1025,
}

// guess finds the port of a service that names none: a port that others write beside its name, or
// the usual one of its image.
func (c *converter) guess(s types.ServiceConfig, out *pando.Spec) {
	at := []string{"services", s.Name}
	users := c.users(s.Name)
	for _, n := range sortedKeys(users) {
		out.Ports = append(out.Ports, pando.Port{Published: n, Target: n, Protocol: pando.TCP})
		c.warn(at, "has no ports, and %s uses %s:%d: it is published; `expose` names others",
			users[n], s.Name, n)
	}
	if len(out.Ports) > 0 {
		return
	}
	name, _, _ := strings.Cut(path.Base(s.Image), "@")
	name, _, _ = strings.Cut(name, ":")
	if n := usual[name]; n != 0 {
		out.Ports = append(out.Ports, pando.Port{Published: n, Target: n, Protocol: pando.TCP})
		c.warn(at, "has no ports: %d is published, the usual one of %s; `expose` names others", n, name)
	} else if needed(c.project, s.Name) {
		c.warn(at, "has no ports, so others do not reach it: name its ports in `expose`")
	}
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
func wordsOf(s types.ServiceConfig) []string {
	out := slices.Concat([]string(s.Command), []string(s.Entrypoint))
	for _, k := range sortedKeys(s.Environment) {
		if v := s.Environment[k]; v != nil {
			out = append(out, *v)
		}
	}
	return out
}
