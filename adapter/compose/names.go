package compose

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
)

// notInNames are the letters that a service of Compose may have and one of Pando may not.
var notInNames = regexp.MustCompile(`[^a-z0-9-]+`)

// nameBytesMax bounds the name of a service of Pando (pando.CheckLabel).
const nameBytesMax = 53

// nameOf returns a service's name as a name of Pando: Web_App becomes web-app, and a longer one ends
// with a hash. Programs reach it by its own name as well, which becomes an alias.
func nameOf(name string) pando.ServiceName {
	out := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-")
	if out != "" && out[0] <= '9' {
		out = "s-" + out
	}
	if len(out) > nameBytesMax {
		hash := fmt.Sprintf("-%08x", crc32.ChecksumIEEE([]byte(name)))
		out = strings.TrimRight(out[:nameBytesMax-len(hash)], "-") + hash
	}
	return pando.ServiceName(out)
}

// serviceNames returns the names of all enabled services, by their names in the file.
func (c *converter) serviceNames() map[string]pando.ServiceName {
	out, of := map[string]pando.ServiceName{}, map[pando.ServiceName]string{}
	for _, name := range c.project.ServiceNames() {
		at, new := []string{"services", name}, nameOf(name)
		if err := pando.CheckLabel("service", string(new)); err != nil {
			c.deny(at, "%v; rename it, and wherever a program has its name", err)
		}
		if other, twice := of[new]; twice {
			c.deny(at, "%s becomes %s, and so does %s: rename one of them", name, new, other)
		}
		out[name], of[new] = new, name
	}
	return out
}

// aliases returns the other names by which the programs of the project reach a service: its name in
// the file, its container's, those of its networks, and those of the links to it.
func (c *converter) aliases(s types.ServiceConfig) (out []string) {
	take := func(name string, at ...string) {
		name = strings.ToLower(name)
		if name == "" || name == string(c.names[s.Name]) || slices.Contains(out, name) {
			return
		}
		if err := pando.CheckAlias(name); err != nil {
			c.warn(at, "%s is left out: %v", name, err)
			return
		}
		if other := c.named(name, s.Name); other != "" {
			c.warn(at, "%s is left out: it is the name of service %s", name, other)
			return
		}
		out = append(out, name)
	}
	take(s.Name, "services", s.Name)
	take(s.ContainerName, "services", s.Name, "container_name")
	for _, network := range sortedKeys(s.Networks) {
		if n := s.Networks[network]; n != nil {
			for _, alias := range n.Aliases {
				take(alias, "services", s.Name, "networks", network, "aliases")
			}
		}
	}
	for _, other := range c.project.ServiceNames() {
		for _, link := range c.project.Services[other].Links {
			if name, alias, ok := strings.Cut(link, ":"); ok && name == s.Name {
				take(alias, "services", other, "links")
			}
		}
	}
	if len(out) > pando.AliasesMax {
		c.deny([]string{"services", s.Name}, "it has %d other names (container_name, aliases, links): "+
			"at most %d", len(out), pando.AliasesMax)
	}
	slices.Sort(out)
	return out
}

// named returns the service of the project, other than one, that has a name, or "".
func (c *converter) named(name, one string) string {
	for _, other := range c.project.ServiceNames() {
		if other != one && (strings.EqualFold(other, name) || string(c.names[other]) == name) {
			return other
		}
	}
	return ""
}
