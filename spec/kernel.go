package spec

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"pando.run/pando"
)

// limits are the names of the bounds of a process in `ulimits`, as in Compose.
var limits = []string{"core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile",
	"nproc", "rss", "rtprio", "rttime", "sigpending", "stack"}

// The settings that an instance has for itself, as in Docker: those of its network and of its shared
// memory. Pando's own are not among them: the way of its packets depends on these.
var (
	ownSysctl = regexp.MustCompile(`^(kernel\.(msgmax|msgmnb|msgmni|sem|shmall|shmmax|shmmni|` +
		`shm_rmid_forced)|fs\.mqueue\.[a-z_]+|net(\.[A-Za-z0-9_-]+){2,6})$`)
	pandoSysctl = regexp.MustCompile(`^net\..*\.(rp_filter|accept_local|accept_ra|accept_dad|` +
		`proxy_arp|proxy_ndp)$`)
	// The kernel loads the module that a value of these names, whoever writes it.
	moduleSysctl = regexp.MustCompile(`(_congestion_control|\.default_qdisc|\.tcp_available_ulp|\.scheduler)$`)
)

// kernelWords checks `ulimits`, `sysctls`, `group_add`, `umask`, `cpuset` and the words for the resolver.
func (c *checks) kernelWords(s pando.Spec) {
	for _, why := range resolverProblems(s) {
		c.that(false, "%s", why)
	}
	c.that(s.Umask == "" || isUmask(s.Umask), "umask: %q: want octal digits such as 0027", s.Umask)
	c.that(s.Resources.CPUSet == "" || isCPUSet(s.Resources.CPUSet),
		"resources.cpuset: %q: want numbers of processors such as 0-3,7", s.Resources.CPUSet)
	for _, name := range slices.Sorted(maps.Keys(s.Ulimits)) {
		c.that(slices.Contains(limits, name), "ulimits: %q: want one of %s", name,
			strings.Join(limits, ", "))
		_, _, err := pando.ReadUlimit(s.Ulimits[name])
		c.that(err == nil, "ulimits.%s: %v", name, err)
	}
	c.that(len(s.Sysctls) <= pando.SysctlsMax, "sysctls: %d: at most %d", len(s.Sysctls),
		pando.SysctlsMax)
	for _, name := range slices.Sorted(maps.Keys(s.Sysctls)) {
		value := s.Sysctls[name]
		c.that(ownSysctl.MatchString(name), "sysctls: %s is a setting of the whole host: an instance has "+
			"net.*, fs.mqueue.*, and kernel.msg*, kernel.shm* and kernel.sem", name)
		c.that(!pandoSysctl.MatchString(name), "sysctls: %s is Pando's: leave it out", name)
		c.that(!moduleSysctl.MatchString(name), "sysctls: %s loads a module into the kernel of the host: "+
			"its owner sets it there", name)
		c.that(value != "" && len(value) <= 256 && !strings.ContainsAny(value, "\n\x00"),
			"sysctls.%s: want a value of one line", name)
	}
	c.that(len(s.GroupAdd) <= pando.GroupAddMax, "group_add: %d: at most %d", len(s.GroupAdd),
		pando.GroupAddMax)
	for _, g := range s.GroupAdd {
		c.that(isGroup(g), "group_add: %q: want a name or a number of a group of the image", g)
	}
}
