// Package features tests the kernel features that Pando needs, each by using it once. For a missing
// feature it reports the cost and the remedy. It leaves nothing behind: networks are made in a
// namespace that ends with the trial.
package features

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/thread"
)

// Config is the machine of the trials.
type Config struct {
	DataDir    string // the folder of the store; need not exist
	CgroupRoot string // /sys/fs/cgroup
	Clock      pando.Clock
}

// State is the outcome of a trial.
type State string

const (
	OK      State = "ok"      // this machine has the feature
	Missing State = "missing" // it does not
)

// Finding is the result of one trial.
type Finding struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Needed bool   `json:"needed"` // without it Pando does not run here
	Found  string `json:"found"`  // the kernel's answer
	Costs  string `json:"costs,omitempty"`
	Mend   string `json:"mend,omitempty"`
}

// trial is one test. It returns its finding, or the reason why the feature is missing.
type trial struct {
	name, costs, mend string
	needed            bool
	try               func(Config) (string, error)
}

// trials are in order of importance, root first. costs names the loss without the feature, mend the
// remedy.
var trials = []trial{
	{"root", "nothing can be started", "run the daemons as root (sudo pando up)", true, tryRoot},
	{"kernel 6.1", "an older one refuses the programs of steering", "boot a newer kernel", true,
		tryRelease},
	{"bpf", "no flow is steered to an instance", "build the kernel with CONFIG_BPF_SYSCALL, or " +
		"allow bpf() (see lockdown, and seccomp of a container)", true, tryBPF},
	{"bpffs", "steering would not outlive the agent",
		"mount -t bpf bpf /sys/fs/bpf (`pando up` does it where it may)", true, tryBPFFS},
	{"namespaces", "no sandbox can be made",
		"allow unshare() (see a container's seccomp profile, and user.max_net_namespaces)", true,
		tryNamespaces},
	{"veth", "an instance has no network", "modprobe veth (CONFIG_VETH)", true, inside(tryVeth)},
	{"dummy device",
		"a veth pair takes its place as the home of the VIPs: one more device, nothing else",
		"modprobe dummy (CONFIG_DUMMY)", false, inside(tryDummy)},
	{"tc", "packets cannot be steered on their way",
		"modprobe cls_bpf sch_ingress (CONFIG_NET_CLS_BPF, CONFIG_NET_SCH_INGRESS), or boot a kernel " +
			"from 6.6 on", true, inside(tryTC)},
	{"tcx", "filters of clsact steer: a tool that deletes a device's filters ends its steering",
		"boot a kernel from 6.6 on with CONFIG_NET_XGRESS", false, inside(tryTCX)},
	{"SO_PEERPIDFD", "a caller of an instance's socket that ends at once can be mistaken for another",
		"boot a kernel from 6.5 on", false, tryPeerPidfd},
	{"cgroups", "instances run without limits, and a spec with resources is refused",
		"mount the memory, cpu and pids controllers (cgroup2 at /sys/fs/cgroup)", false, tryCgroups},
	{"data folder", "the store cannot write",
		"choose another with --data-dir, or make room (2 GiB are comfortable)", true, trySpace},
	{"fsync", "every decision waits for the disk: replicate() takes as long as two of these",
		"put --data-dir on a faster disk", false, tryFsync},
	{"addresses", "packets for a VIP would go elsewhere",
		"remove the routes, or move that network: VIPs are " + pando.VIPs4.String() +
			", instances " + pando.Instances4.String() + "; or choose others with `pando up --vips " +
			"--instances`", false, tryAddresses},
	{"forwarding", "other machines do not reach VIPs through this one",
		"sysctl net.ipv4.ip_forward=1 (`pando up` does it)", false, tryForwarding},
	{"firewall", "packets of instances to other machines may be dropped in this host",
		"allow packets from and to " + pando.VIPs4.String() + " and " + pando.Instances4.String() +
			" ahead of the policy, as with `iptables -I FORWARD -s " + pando.VIPs4.String() + " -j ACCEPT`",
		false, tryFirewall},
	{"reverse path filter",
		"answers of instances are dropped: they come from a VIP, at another device than the route to it",
		"sysctl net.ipv4.conf.all.rp_filter=0, and the same in " +
			"/etc/sysctl.d where something sets it to 1", false, tryReversePath},
	{"conntrack", "connections of instances to other machines fail when the firewall's table is " +
		"full; VIPs are not tracked", "raise net.netfilter.nf_conntrack_max", false, tryConntrack},
	{"clock", "`pando why` of several hosts has the wrong order", "run chrony or systemd-timesyncd",
		false, tryClock},
	{"AF_XDP", "network functions (pando fn) use the slower AF_PACKET",
		"build the kernel with CONFIG_XDP_SOCKETS", false, inside(tryXDP)},
	{"userfaultfd", "far memory (pando mem) does not run", "build the kernel with CONFIG_USERFAULTFD",
		false, tryUserfaultfd},
	{"UFFDIO_MOVE", "far memory copies pages (1 µs) instead of moving them (0.05 µs), and " +
		"refuses O_DIRECT and io_uring", "boot a kernel from 6.8 on", false, tryMove},
}

// Examine runs every trial, in order, until ctx ends. Without root it stops after the first: a
// refusal to a user proves nothing about the kernel.
func Examine(ctx context.Context, c Config) []Finding {
	var out []Finding
	for i, t := range trials {
		if ctx.Err() != nil || i > 0 && out[0].State != OK {
			break
		}
		out = append(out, t.run(c))
	}
	return out
}

func (t trial) run(c Config) Finding {
	found, err := t.try(c)
	f := Finding{Name: t.name, State: OK, Needed: t.needed, Found: found}
	if err != nil {
		f.State, f.Found, f.Costs, f.Mend = Missing, err.Error(), t.costs, t.mend
	}
	return f
}

// Fit reports whether every needed feature exists.
func Fit(all []Finding) bool {
	for _, f := range all {
		if f.Needed && f.State != OK {
			return false
		}
	}
	return true
}

// inside runs a trial in its own network namespace. The thread ends with the trial, and so does the
// namespace with everything in it.
func inside(try func() (string, error)) func(Config) (string, error) {
	return func(Config) (found string, err error) {
		thread.Run(func() {
			if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
				err = fmt.Errorf("make a network namespace: %w", err)
				return
			}
			found, err = try()
		})
		return found, err
	}
}

func tryRoot(Config) (string, error) {
	if uid := unix.Geteuid(); uid != 0 {
		return "", fmt.Errorf("the user id is %d", uid)
	}
	return "the user id is 0", nil
}

// The oldest kernel with every needed feature.
const majorMin, minorMin = 6, 1

func tryRelease(Config) (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	return release, recent(release)
}

// recent returns nil if a release is new enough: "6.18.4-amd64" is 6.18.
func recent(release string) error {
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) < 2 {
		return fmt.Errorf("cannot read the release %q", release)
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("cannot read the release %q: %w", release, err)
	}
	if major < majorMin || major == majorMin && minor < minorMin {
		return fmt.Errorf("it is %s", release)
	}
	return nil
}

func tryNamespaces(Config) (string, error) {
	var err error
	thread.Run(func() {
		err = unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS |
			unix.CLONE_NEWIPC | unix.CLONE_NEWPID)
	})
	if err != nil {
		return "", fmt.Errorf("unshare: %w", err)
	}
	return "mount, network, uts, ipc, pid", nil
}

func tryPeerPidfd(Config) (string, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	pidfd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return "", fmt.Errorf("getsockopt: %w", err)
	}
	unix.Close(pidfd)
	return "a socket identifies its process", nil
}
