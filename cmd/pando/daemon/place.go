package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/systemd"
	"pando.run/pando/driver/network/features"
	"pando.run/pando/driver/network/ovs"
	"pando.run/pando/world"
)

// place describes where and how a host's daemons run. Every role gets the same flags, so that the
// daemons find each other.
type place struct {
	folders
	Host     string
	Address  string   // of this host, for local clients and for other hosts
	address6 string   // the IPv6 address of this host, "" = none
	Uplinks  []string // where packets for VIPs arrive
	HTTP     string   // address at which states can be cloned
	Pool     int      // number of ready sandboxes
	Labels   []string // words about this host, for the placement of services
	Listen   string   // address at which other hosts reach this one
	// VIPs and Instances are the IPv4 ranges that the cluster gives out.
	VIPs, Instances string
	Announce        string // how machines of the network find VIPs: arp, bgp or none
	BGP             routing
	Join            string // the server of the cluster to join
	Token           string
	Serves          bool         // this host becomes one of several servers
	Store           foreignStore // the zero value: the embedded etcd
	Steer, OVS      string       // how packets reach instances; the folder of Open vSwitch's sockets
	Slot            int          // of this host in its cluster
	Units           systemd.Manager
	keep            keptFlags // for later starts of the data folder; nil: it keeps what it has
}

// flags adds every flag by which a command starts a daemon.
func (p *place) flags(c *cobra.Command) {
	p.folderFlags(c)
	p.networkFlags(c)
	p.poolFlag(c)
	p.labelFlag(c)
	p.Store.flags(c)
}

// folderFlags adds the flags by which a command finds the daemons of this host.
func (p *place) folderFlags(c *cobra.Command) {
	p.runFlag(c)
	p.dataFlag(c)
	c.Flags().StringVar(&p.Host, "host", "", "name of this host (default: its host name)")
}

func (p *place) networkFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&p.Address, "address", "", "address of this host (default: of the first uplink)")
	f.StringSliceVar(&p.Uplinks, "uplink", nil,
		"interfaces that receive packets for VIPs (default: all that are up)")
	f.StringVar(&p.HTTP, "http", "127.0.0.1:7400",
		"address for clones and for monitoring, read-only (empty = none)")
	f.StringVar(&p.Listen, "listen", "auto",
		"address for other hosts, 7401-7403 (auto = --address, empty = none)")
	f.StringVar(&p.Steer, "steer", steerEBPF,
		"how packets reach instances: ebpf, ovs or ovs-group")
	f.StringVar(&p.OVS, "ovs-run", ovs.RunDir, "folder with the sockets of Open vSwitch")
	f.StringVar(&p.VIPs, "vips", pando.VIPs4.String(),
		"IPv4 range of the services, a /16, the same on all hosts")
	f.StringVar(&p.Instances, "instances", pando.Instances4.String(),
		"IPv4 range of the instances, the same on all hosts")
	f.StringVar(&p.Announce, "announce", announceNone,
		"arp = answer for VIPs on the network of --address; bgp; none")
	p.BGP.flags(c)
}

func (p *place) poolFlag(c *cobra.Command) {
	c.Flags().IntVar(&p.Pool, "pool", 3, "number of sandboxes to keep ready")
}

func (p *place) labelFlag(c *cobra.Command) {
	c.Flags().StringSliceVar(&p.Labels, "label", nil,
		"labels of this host, such as zone=a, for place in a spec")
}

// pins returns the folder of the data plane's pinned maps.
func (p place) pins() string { return "/sys/fs/bpf/pando/" + p.Host }

// args returns the flags that pass this place to another role.
func (p place) args() []string {
	out := []string{
		"--run-dir", p.Run, "--data-dir", p.Data, "--host", p.Host,
		"--address", p.Address, "--http", p.HTTP, "--listen", p.Listen, "--pool", fmt.Sprint(p.Pool),
		"--vips", p.VIPs, "--instances", p.Instances, "--announce", p.Announce,
		"--steer", p.Steer, "--ovs-run", p.OVS,
	}
	for _, u := range p.Uplinks {
		out = append(out, "--uplink", u)
	}
	for _, l := range p.Labels {
		out = append(out, "--label", l)
	}
	out = append(out, p.Store.args()...)
	if p.Announce == announceBGP {
		out = append(out, p.BGP.args()...)
	}
	return out
}

var (
	notLabel    = regexp.MustCompile(`[^a-z0-9-]+`)
	sandboxLink = regexp.MustCompile(`^p[deov][0-9]+$|^ovs-`) // also of driver/network/ovs
)

// completeAgain fills in missing flags from the earlier starts of the data folder, then from the
// machine. It returns the names of the flags on the command line.
func (p *place) completeAgain(flags *pflag.FlagSet) (asked map[string]bool, err error) {
	if err := p.locate(); err != nil {
		return nil, err
	}
	if asked, err = p.recallFlags(flags); err != nil {
		return nil, err
	}
	if err := p.complete(); err != nil {
		return nil, err
	}
	p.keep = p.lastingFlags(flags)
	return asked, nil
}

// complete fills in missing flags from the machine.
func (p *place) complete() error {
	if err := errors.Join(p.locate(), completeStore(p)); err != nil {
		return err
	}
	if _, err := pando.LabelsOf(p.Labels); err != nil {
		return fmt.Errorf("%w (`--label`)", err)
	}
	links, err := uplinks()
	if err != nil {
		return err
	}
	for _, name := range p.Uplinks {
		if _, err := netlink.LinkByName(name); err != nil {
			return fmt.Errorf("%w: there is no interface %s for --uplink; this host has %s",
				pando.ErrInvalid, name, strings.Join(links, ", "))
		}
	}
	if len(p.Uplinks) == 0 {
		p.Uplinks = links
	}
	if err := checkSteer(*p); err != nil {
		return err
	}
	p.address6 = addressOf(p.Uplinks, netlink.FAMILY_V6)
	if p.Address == "" {
		p.Address = cmp.Or(addressOf(p.Uplinks, netlink.FAMILY_V4), p.address6)
	}
	if p.Listen == "auto" {
		p.Listen = p.Address
	}
	if err := checkAnnounce(p); err != nil {
		return err
	}
	return p.useRanges()
}

// useRanges makes the ranges of the flags those of this process. A role without the flags uses the
// usual ones.
func (p place) useRanges() error {
	ranges := [2]netip.Prefix{pando.VIPs4, pando.Instances4}
	for n, text := range []string{p.VIPs, p.Instances} {
		if text == "" {
			continue
		}
		var err error
		if ranges[n], err = netip.ParsePrefix(text); err != nil {
			return fmt.Errorf("%w: %q is no range of addresses; give one like %s",
				pando.ErrInvalid, text, ranges[n])
		}
	}
	return pando.UseRanges(ranges[0], ranges[1])
}

// locate fills in the host's name and the places of its folders.
func (p *place) locate() error {
	if is := os.Geteuid(); is != 0 && is != serverUser {
		return fmt.Errorf("%w: the daemons of pando need root (namespaces, eBPF, cgroups); try sudo",
			pando.ErrForbidden)
	}
	if err := p.folders.locate(); err != nil {
		return err
	}
	if p.Host == "" {
		kept, err := p.readFlags()
		if err != nil {
			return err
		}
		p.Host = strings.Join(kept["host"], "")
	}
	if p.Host == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the name of this host: %w; give it with --host", err)
		}
		short, _, _ := strings.Cut(strings.ToLower(name), ".")
		p.Host = strings.Trim(notLabel.ReplaceAllString(short, "-"), "-")
	}
	return pando.CheckLabel("host", p.Host)
}

// uplinks returns the interfaces that lead out of this host.
func uplinks() (out []string, err error) {
	links, err := features.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of this host: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		ours := strings.HasPrefix(a.Name, "pando0") || sandboxLink.MatchString(a.Name)
		if a.Flags&net.FlagLoopback == 0 && a.Flags&net.FlagUp != 0 && !ours && l.Type() != "dummy" {
			out = append(out, a.Name)
		}
	}
	return out, nil
}

// addressOf returns an address at which others reach this host. It skips link-local addresses
// (fe80::), because a host that forwards packets to one would send redirects to their senders.
func addressOf(names []string, family int) string {
	const unusable = unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED
	for _, n := range names {
		l, err := netlink.LinkByName(n)
		if err != nil {
			continue
		}
		addrs, _ := netlink.AddrList(l, family)
		for _, a := range addrs {
			if a.IP.IsGlobalUnicast() && a.Flags&unusable == 0 {
				return a.IP.String()
			}
		}
	}
	return ""
}

// record returns the host's record for the registry.
func (p place) record() pando.Host {
	h := pando.Host{
		Name: pando.HostName(p.Host), Slot: p.Slot, Endpoint: "unix://" + p.agent(),
		CPUs: float64(runtime.NumCPU()), Version: cli.Version, Joined: clock.Clock{}.Now(),
		Layout: world.CurrentLayout(), Bundles: true, Volumes: true, Secrets: true, Binds: true,
		Configs: true, Externals: true, Ordinals: true, Runs: true, Grants: true, VMs: true,
		Fronts:   p.Steer == "" || p.Steer == steerEBPF,
		Straight: p.Steer == "" || p.Steer == steerEBPF,
	}
	_, err := exec.LookPath(pando.RuntimeCrun)
	h.Crun = err == nil
	if p.Listen != "" {
		h.Endpoint = p.endpoint()
	}
	h.Labels, _ = pando.LabelsOf(p.Labels) // complete has checked them
	h.Segment = segmentOf(p)
	h.Address, _ = netip.ParseAddr(p.Address)
	h.Address6, _ = netip.ParseAddr(p.address6)
	h.Instances4, h.Instances6 = pando.InstanceRange(h.Slot)
	if text, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil {
		h.PIDs, _ = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	return h
}
