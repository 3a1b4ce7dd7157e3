package compose

import (
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
)

// held are the capabilities that root of an image has already, inside users of its own. A service
// binds every port without one.
var held = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL",
	"NET_BIND_SERVICE", "SETGID", "SETPCAP", "SETUID"}

// spare are capabilities that programs ask for and do without.
var spare = map[string]string{
	"IPC_LOCK":      "its memory may be swapped, if the host swaps",
	"SYS_NICE":      "its priorities are the host's",
	"SYS_RESOURCE":  "its limits are those of `resources` and of the host",
	"NET_RAW":       "raw sockets, such as those of ping, are refused",
	"SYS_CHROOT":    "chroot is refused",
	"MKNOD":         "it makes no devices",
	"SETFCAP":       "it sets no capabilities of files",
	"BLOCK_SUSPEND": "it does not keep the host awake",
	"AUDIT_WRITE":   "it writes no records of the audit",
	"LEASE":         "it takes no leases of files",
	"SYSLOG":        "it reads no messages of the kernel",
}

// powers are capabilities over the host, with the reason of the refusal.
var powers = map[string]string{
	"ALL":                "it has every power over the host",
	"SYS_ADMIN":          "it mounts file systems and leaves its namespaces",
	"SYS_MODULE":         "it loads code into the kernel",
	"SYS_RAWIO":          "it reads and writes the memory of the host",
	"SYS_PTRACE":         "it reads the memory of other programs",
	"SYS_BOOT":           "it restarts the host",
	"SYS_TIME":           "it sets the clock of the host",
	"NET_ADMIN":          "it changes the network that Pando steers",
	"DAC_READ_SEARCH":    "it reads every file",
	"BPF":                "it loads programs into the kernel",
	"PERFMON":            "it observes the whole host",
	"LINUX_IMMUTABLE":    "it changes immutable files of the host",
	"MAC_ADMIN":          "it changes the policies of the host",
	"CHECKPOINT_RESTORE": "`pando snapshot` makes snapshots",
}

// capabilities answers `cap_add`: nothing is granted, so each word must be harmless to leave out.
func (c parts) capabilities(s types.ServiceConfig) {
	for _, word := range s.CapAdd {
		name := strings.TrimPrefix(strings.ToUpper(word), "CAP_")
		why, dangerous := powers[name]
		without, optional := spare[name]
		switch {
		case slices.Contains(held, name):
		case optional:
			c.warn(c.at("cap_add"), "%s is left out: %s", name, without)
		case dangerous:
			c.deny(c.at("cap_add"), "%s is refused: %s; leave it out, or run this program without Pando",
				name, why)
		default:
			c.deny(c.at("cap_add"), "%s is refused: instances have no such capability; leave it out, or "+
				"run this program without Pando", name)
		}
	}
}

// devices converts `devices` to grants. The owner of a host allows each.
func (c parts) devices(s types.ServiceConfig) {
	for _, d := range s.Devices {
		if slices.Contains([]string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
			"/dev/urandom", "/dev/tty", "/dev/shm"}, d.Source) { // of every instance
			continue
		}
		g, err := pando.ParseGrant("device=" + d.Source)
		switch {
		case err != nil || !strings.HasPrefix(d.Source, "/dev/"):
			c.deny(c.at("devices"), "%s: name one device of /dev", d.Source)
			continue
		case d.Target != "" && d.Target != d.Source:
			c.deny(c.at("devices"), "%s: an instance has it at its own path: write %[1]s:%[1]s, and name "+
				"that path in the program", d.Source)
			continue
		}
		c.grant("devices", g)
	}
	if s.NetworkMode == "host" {
		c.grant("network_mode", pando.GrantHostNet)
	}
}

// grant adds a grant to the spec.
func (c parts) grant(word string, g pando.Grant) {
	if slices.Contains(c.out.Grants, g) {
		return
	}
	c.out.Grants = append(c.out.Grants, g)
	c.warn(c.at(word), "becomes a grant: the service waits until the owner of a host gives it "+
		"(`pando hosts allow HOST %s`)", g)
}

// hosts converts `extra_hosts`. The host itself is its gateway.
func (c parts) hosts(s types.ServiceConfig) {
	out := c.out
	for _, name := range sortedKeys(s.ExtraHosts) {
		for _, address := range s.ExtraHosts[name] {
			if address == "host-gateway" {
				address = pando.Gateway4.String()
				c.warn(c.at("extra_hosts"), "%s is the host: add reach: [internet, host] to the spec, and let "+
					"the program there listen on every address", name)
			}
			if out.ExtraHosts == nil {
				out.ExtraHosts = map[string]string{}
			}
			if _, twice := out.ExtraHosts[name]; twice {
				c.warn(c.at("extra_hosts"), "%s: its further addresses are left out", name)
				break
			}
			out.ExtraHosts[name] = strings.Trim(address, "[]")
		}
	}
}
