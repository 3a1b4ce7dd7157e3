package spec

import (
	"regexp"

	"pando.run/pando"
)

// hostnamePattern is a name of a machine: labels of letters, digits and hyphens.
const hostnamePattern = `^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?` +
	`(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`

// hostnameBytesMax is the kernel's bound of the name of a machine.
const hostnameBytesMax = 64

var (
	isHostname   = regexp.MustCompile(hostnamePattern).MatchString
	hostnameKind = textKind(hostnamePattern, "a name of a machine such as mail.example.com",
		stringOnly, func(s string) (any, error) { return s, nil })
)

// hostname checks the name of the machine that instances see.
func (c *checks) hostname(s pando.Spec) {
	c.that(s.Hostname == "" || isHostname(s.Hostname) && len(s.Hostname) <= hostnameBytesMax,
		"hostname: %q: want labels of letters, digits and hyphens, %d bytes at most, such as "+
			"mail.example.com", s.Hostname, hostnameBytesMax)
}
