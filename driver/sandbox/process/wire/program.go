package wire

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"pando.run/pando"
)

// Program describes the program that a shim starts.
type Program struct {
	Instance pando.InstanceID   `json:"instance"`
	Service  pando.ServiceKey   `json:"service"`
	Hostname string             `json:"hostname"`
	Address  netip.Addr         `json:"address,omitzero"` // of the instance, for its own name
	Argv     []string           `json:"argv"`
	Env      []string           `json:"env"`
	Dir      string             `json:"dir"`
	UID      uint32             `json:"uid"`
	GID      uint32             `json:"gid"`
	Groups   []uint32           `json:"groups,omitempty"` // beside GID
	Layers   []string           `json:"layers,omitempty"` // of its image, the highest first
	LogDir   string             `json:"log_dir"`
	Cgroup   pando.CgroupEntry  `json:"cgroup"`
	VIPs     []netip.Addr       `json:"vips"`
	Idle     bool               `json:"idle,omitempty"` // it starts nothing: sessions alone do
	Init     bool               `json:"init,omitempty"` // the shim stays PID 1
	Show     []HostPath         `json:"show,omitempty"`
	Volumes  []Volume           `json:"volumes,omitempty"`
	Tmpfs    []pando.Tmpfs      `json:"tmpfs,omitempty"`
	Bundle   *Bundle            `json:"bundle,omitempty"`
	Secrets  map[string][]byte  `json:"secrets,omitempty"`
	Configs  []pando.ConfigFile `json:"configs,omitempty"`
	Hosts    map[string]string  `json:"hosts,omitempty"` // for /etc/hosts
	ReadOnly bool               `json:"read_only,omitempty"`
	Open     bool               `json:"open,omitempty"` // no filter of system calls
	Devices  []pando.Device     `json:"devices,omitempty"`
	// Runtime is the program that starts it, instead of the shim: a runtime of OCI. "": the shim.
	Runtime string `json:"runtime,omitempty"`
	HostNet bool   `json:"host_net,omitempty"` // of the descriptor that comes with it
	// Users is the range of its user namespace, in which UID, GID and Groups are. Nil: none.
	Users *Users `json:"users,omitempty"`
	// Limits are bounds of each process, Sysctls are settings of the sandbox's kernel.
	Limits  map[string]string `json:"limits,omitempty"`
	Sysctls map[string]string `json:"sysctls,omitempty"`
	Umask   string            `json:"umask,omitempty"` // octal digits; "": that of the shim

	Owners []uint32 `json:"-"` // large ids of the image's files, for Users
}

// IDOutside returns the host's id of an id inside.
func (p Program) IDOutside(id uint32) uint32 {
	if p.Users == nil {
		return id
	}
	return p.Users.Outside(id)
}

// IDInside returns the id inside of one of the host.
func (p Program) IDInside(id uint32) uint32 {
	if p.Users == nil {
		return id
	}
	return p.Users.Inside(id)
}

// HostsFile returns the text of /etc/hosts of a program: this machine by its own name, the names of the
// spec, and then the lines of the host, for its own programs. The own name has no IPv6 address,
// because a program that listens by IPv4 alone would not answer there.
func (p Program) HostsFile(host string) string {
	var all strings.Builder
	all.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	if p.Hostname != "" {
		at := netip.AddrFrom4([4]byte{127, 0, 1, 1}) // in the network of the host
		if p.Address.IsValid() && !p.HostNet {
			at = p.Address
		}
		names := p.Hostname
		if short, _, full := strings.Cut(names, "."); full {
			names += " " + short
		}
		all.WriteString(at.String() + " " + names + "\n")
	}
	for _, name := range slices.Sorted(maps.Keys(p.Hosts)) {
		all.WriteString(p.Hosts[name] + " " + name + "\n")
	}
	if host = strings.TrimRight(host, "\n"); host != "" {
		all.WriteString(host + "\n")
	}
	return all.String()
}

// Remedy returns the words of a spec that give a program more of the host's files.
func (p Program) Remedy() string {
	if p.Users != nil && p.Layers == nil {
		return "`userns_mode: host`, because its root is not the host's,"
	}
	return "`user`"
}

// MapsUsers reports whether the ids of a volume are those inside of the program's users. So are those of
// a folder of the host that the program of an image may write: its spec grants it, and no user of the
// image is one of the host's.
func (p Program) MapsUsers(v Volume) bool {
	return p.Users != nil && (!v.Host || v.Write && p.Layers != nil)
}

// MayWrite reports whether the program may make files in a folder whose owner has ids inside. Root of
// an image may in each. Root of the host has no capability.
func (p Program) MayWrite(o Owner) bool {
	member := o.GID == int(p.GID) || slices.Contains(p.Groups, uint32(o.GID))
	switch {
	case p.UID == 0 && p.Users != nil:
		return true
	case o.UID == int(p.UID):
		return o.Mode&0o300 == 0o300
	case member:
		return o.Mode&0o030 == 0o030
	}
	return o.Mode&0o003 == 0o003
}

// IsPID1 reports whether a program is to be PID 1.
func (p Program) IsPID1() bool { return p.Layers != nil && !p.Init && p.Runtime == "" }

// Owner is the owner and the mode of a file.
type Owner struct {
	UID, GID int
	Mode     uint32
}
