package steering

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/ebpf"
	"pando.run/pando/driver/network/ovs"
)

// bridge is driver/network/ovs as a subject, with an Open vSwitch of its own.
type bridge struct {
	*ovs.Driver
	dir  string
	mode ovs.Mode
	lack map[string]string
}

// switches has the running switch of each test.
var switches = map[string]string{}

// startSwitch starts a switch for a test, or returns the folder of the running one.
func startSwitch(t *testing.T) string {
	t.Helper()
	if dir := switches[t.Name()]; dir != "" {
		return dir
	}
	dir := t.TempDir()
	d, err := ovs.Start(t.Context(), dir)
	check(t, err)
	switches[t.Name()] = dir
	t.Cleanup(func() {
		delete(switches, t.Name())
		check(t, d.Stop())
	})
	out, err := exec.Command("ovs-vsctl", "--db=unix:"+filepath.Join(dir, "db.sock"),
		"set", "Open_vSwitch", ".", "other_config:max-revalidator=50").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

func openBridge(t *testing.T, m ovs.Mode, lacks map[string]string, uplinks ...string) Subject {
	t.Helper()
	dir := startSwitch(t)
	d, err := ovs.Open(t.Context(), ovs.Config{
		RunDir: dir, StateDir: filepath.Join(dir, "state"), PinDir: "/sys/fs/bpf/pando-ovs/t", Mode: m,
		Stack: ebpf.Stack{Config: ebpf.Config{Uplinks: uplinks}},
	})
	check(t, err)
	return &bridge{d, dir, m, lacks}
}

func openLearn(t *testing.T, uplinks ...string) Subject {
	t.Helper()
	return openBridge(t, ovs.Learn, lacksOfLearn, uplinks...)
}

func (b *bridge) Lacks() map[string]string { return b.lack }

// settle waits until the switch has counted.
func (b *bridge) settle() error {
	pid, err := filepath.Glob(filepath.Join(b.dir, "ovs-vswitchd.*.ctl"))
	if err != nil || len(pid) != 1 {
		return fmt.Errorf("find the control socket: %v, %w", pid, err)
	}
	out, err := exec.Command("ovs-appctl", "-t", pid[0], "revalidator/wait").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// mute keeps the stacks of a namespace from answering. Frames that a test injects still pass.
func mute(netns string) error {
	c := exec.Command("nft", "-f", "-")
	if netns != "" {
		c = exec.Command("nsenter", "--net="+netns, "nft", "-f", "-")
	}
	c.Stdin = strings.NewReader(`table inet mute {
		chain out { type filter hook output priority 0; policy drop; }
		chain on { type filter hook forward priority 0; policy drop; }
	}`)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("mute a namespace: %w: %s", err, out)
	}
	return nil
}

// muted is a bridge between silent stacks: each packet is one of the table.
type muted struct {
	*bridge
	links map[string]pando.Link
	marks byte
}

func openMuted(t *testing.T, m ovs.Mode, lacks map[string]string, uplinks ...string) Subject {
	t.Helper()
	b := openBridge(t, m, lacks, uplinks...).(*bridge)
	check(t, mute(""))
	t.Cleanup(func() { check(t, exec.Command("nft", "delete", "table", "inet", "mute").Run()) })
	// A frame of the protocol of a mark comes back to the host's port.
	c := exec.Command("ovs-ofctl", "-O", "OpenFlow15", "add-flow",
		"unix:"+filepath.Join(b.dir, ovs.Bridge+".mgmt"),
		"table=0,priority=60000,ip,nw_proto=253,actions=output:1,in_port")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return &muted{bridge: b, links: map[string]pando.Link{}}
}

func (m *muted) Connect(
	ctx context.Context, l pando.Link, ports []pando.Port, vip4, vip6 netip.Addr,
) error {
	m.links[l.Host] = l
	return errors.Join(mute(l.Netns), m.bridge.Connect(ctx, l, ports, vip4, vip6))
}

// Try puts a frame onto the real link of its place, and reads the links at which it may come out.
// Marks follow it, so that a slow frame does not pass for a dropped one.
func (m *muted) Try(at Place, l pando.Link, frame []byte, _ bool) (Outcome, error) {
	if at == Outside && !toVIP(frame) {
		return Outcome{Passed, frame}, nil // the host's routes do not lead it to the bridge
	}
	host, err := wireOf("", ovs.Device)
	if err != nil {
		return Outcome{}, err
	}
	defer host.Close()
	source, ends := host, map[*wire]pando.Link{}
	for _, i := range m.links {
		w, err := wireOf(i.Netns, "eth0")
		if err != nil {
			return Outcome{}, err
		}
		defer w.Close()
		if ends[w] = i; at != Outside && at != Host && i.Host == l.Host {
			source = w
		}
	}
	if err := source.send(frame); err != nil {
		return Outcome{}, err
	}
	var back [][]byte
	for range 2 { // once the second is back, the batch of the first has left
		m.marks++
		frames, err := host.until(source, m.marks, l)
		if err != nil {
			return Outcome{}, err
		}
		back = append(back, frames...)
	}
	if err := m.settle(); err != nil {
		return Outcome{}, err
	}
	for w := range ends {
		if frames := w.received(); len(frames) > 0 {
			return Outcome{Sent, frames[0]}, nil
		}
	}
	switch {
	case len(back) == 0:
		return Outcome{Fate: Dropped}, nil
	// The stations at the host's port are the port's own.
	case at == Outside || at == Host:
		return Outcome{Sent, between(back[0], l.HostMAC, l.MAC)}, nil
	}
	return Outcome{Passed, between(back[0], frame[6:12], frame[:6])}, nil
}

// between returns a frame between other stations.
func between(frame, from, to []byte) []byte {
	return append(append(slices.Clone(to), from...), frame[12:]...)
}

func toVIP(frame []byte) bool {
	if frame[14]>>4 == 4 {
		return pando.VIPs4.Contains(netip.AddrFrom4([4]byte(frame[30:34])))
	}
	return pando.VIPs6.Contains(netip.AddrFrom16([16]byte(frame[38:54])))
}

// wire is a device from which frames are read, and onto which they are put.
type wire struct{ fd, ifindex int }

func wireOf(ns, device string) (w *wire, err error) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- func() error {
			if ns != "" {
				h, err := netns.GetFromPath(ns)
				if err != nil {
					return err
				}
				defer h.Close()
				if err := netns.Set(h); err != nil {
					return err
				}
			}
			dev, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			const all = 0x0300 // ETH_P_ALL in network order
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
			if err != nil {
				return err
			}
			w = &wire{fd, dev.Index}
			return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index})
		}()
	}()
	return w, <-done
}

func (w *wire) Close() error { return unix.Close(w.fd) }

func (w *wire) send(frame []byte) error {
	return unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.ifindex})
}

// received returns the waiting frames that came in.
func (w *wire) received() (out [][]byte) {
	for {
		p := make([]byte, 1<<16)
		n, from, err := unix.Recvfrom(w.fd, p, unix.MSG_DONTWAIT)
		if err != nil {
			return out
		}
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && n > 34 &&
			(p[14]>>4 != 4 || p[23] != 253) {
			out = append(out, p[:n])
		}
	}
}

// until sends a mark by way of a source and waits until it arrives here. It returns other frames.
func (w *wire) until(source *wire, id byte, l pando.Link) (out [][]byte, err error) {
	mark := Packet{
		Protocol: 253, Src: at(far[0], 0), Dst: at(far[0], 0), Payload: append(make([]byte, 30), id),
	}
	if err := source.send(mark.Bytes(l.MAC, l.HostMAC)); err != nil {
		return nil, err
	}
	for {
		watched := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(watched, int(wait.Milliseconds()))
		if err == nil && n == 0 {
			err = errors.New("the mark is lost")
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		p := make([]byte, 1<<16)
		n, from, err := unix.Recvfrom(w.fd, p, unix.MSG_DONTWAIT)
		switch {
		case err != nil || from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING:
		case n > 64 && p[14]>>4 == 4 && p[23] == 253:
			if p[64] == id {
				return out, nil
			}
		default:
			out = append(out, p[:n])
		}
	}
}

func (b *bridge) Try(Place, pando.Link, []byte, bool) (Outcome, error) {
	return Outcome{}, fmt.Errorf("only a muted bridge tries single packets: %w", errors.ErrUnsupported)
}

func openGroup(t *testing.T, uplinks ...string) Subject {
	t.Helper()
	return openBridge(t, ovs.Group, lacksOfGroup(), uplinks...)
}

func TestConformanceOfOVSGroup(t *testing.T) {
	Hold(t, func(t *testing.T, uplinks ...string) Subject {
		return openMuted(t, ovs.Group, lacksOfGroup(), uplinks...)
	})
}

func TestLiveOfOVSGroup(t *testing.T) { Live(t, openGroup) }

func TestConformanceOfOVS(t *testing.T) {
	Hold(t, func(t *testing.T, uplinks ...string) Subject {
		return openMuted(t, ovs.Learn, lacksOfLearn, uplinks...)
	})
}

func TestLiveOfOVS(t *testing.T) { Live(t, openLearn) }

func TestPoliciesOfOVS(t *testing.T) { Policies(t, openLearn) }

// Reasons why a stock switch lacks a guarantee.
const (
	noAnswer = "The switch makes no packet: no RST, no ICMP."
	noQuote  = "The switch does not read the quoted packet of an ICMP error."
	noPieces = "The switch does not join the pieces of a datagram."
	noParse  = "The switch gives no reason for an unreadable header."
	noCount  = "A learned flow is counted once, and its ports may be used again."
	noHold   = "The switch holds no packet."
	noPolicy = "The switch hashes; scores become weights."
)

// Reasons why a select group lacks a guarantee.
const (
	noMemory = "A group has no flows: a change of its weights moves established ones."
	noFlows  = "A group counts the SYNs, and no flows."
)

// lacksOfGroup are those that it does not hold in group mode.
func lacksOfGroup() map[string]string {
	out := maps.Clone(lacksOfLearn)
	for name, why := range map[string]string{
		"flows are shared and stay":                         noMemory,
		"a host that takes over":                            noMemory,
		"a handshake is no flow for long":                   noFlows,
		"a retransmission opens no flow":                    noFlows,
		"options are read over":                             noFlows,
		"UDP, from a server that answers as the VIP":        noFlows,
		"UDP, from a server that is bound to every address": noFlows,
		"pieces from a server that answers as the VIP":      noFlows,
	} {
		out[name] = why
	}
	delete(out, "ports used again open a new flow")
	return out
}

// suites are whole suites that driver/network/ovs does not hold, in either mode.
var suites = map[string]string{
	"instances of other hosts serve the clients of each": "The driver has no tunnel.",
	"the first packet wakes a service":                   noHold,
	"a flood of SYNs evicts no established flow":         "Learned flows share one table.",
}

const guarantees = "../../docs/reference/steering.md"

// The reference lists the guarantees that a driver lacks. The tests above hold the lists true.
func TestGuaranteesReference(t *testing.T) {
	learn, group := lacksOfLearn, lacksOfGroup()
	maps.Copy(group, suites)
	learn = maps.Clone(learn)
	maps.Copy(learn, suites)
	var b strings.Builder
	b.WriteString(`# Guarantees of steering, by driver

The suite in test/steering checks every driver. All three ways hold each of its guarantees that is
not in this table. ` + "`go test ./test/steering -run Reference -update`" + ` writes it.

| guarantee | ebpf | ovs | ovs-group |
|---|---|---|---|
`)
	word := func(why string) string {
		if why == "" {
			return "yes"
		}
		return "no"
	}
	names := map[string]bool{}
	for name := range learn {
		names[name] = true
	}
	for name := range group {
		names[name] = true
	}
	reasons := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "| %s | yes | %s | %s |\n", name, word(learn[name]), word(group[name]))
		reasons[cmp.Or(learn[name], group[name])] = true
	}
	b.WriteString("\nThe reasons:\n\n")
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&b, "- %s\n", why)
	}
	if *update {
		check(t, os.WriteFile(guarantees, []byte(b.String()), 0o644))
	}
	text, err := os.ReadFile(guarantees)
	check(t, err)
	if string(text) != b.String() {
		t.Error("docs/reference/steering.md is old; run the test with -update")
	}
}

var update = flag.Bool("update", false, "write the reference")

// lacksOfLearn are the guarantees that a stock switch does not hold in learn mode.
var lacksOfLearn = map[string]string{
	"an instance is a client":                          noAnswer,
	"a closed port":                                    noAnswer,
	"an unused address":                                noAnswer,
	"a service without an endpoint":                    noAnswer,
	"ports used again open a new flow":                 noCount,
	"the pieces of a datagram follow the first":        noPieces,
	"a header cut short":                               noParse,
	"IPv6 extensions that cannot be read":              noParse,
	"an error reaches the sender of the quoted packet": noQuote,
	"an error about another's packet":                  noQuote,
	"an error that quotes nothing":                     noQuote,
	"an instance complains as its VIP":                 noQuote,
	"a refusal comes at once":                          noAnswer,
	"UDP is answered by the VIP":                       noPieces,
	"a smaller MTU on the way is reported":             noQuote,
	"round robin takes turns":                          noPolicy,
	"haven begins with the best at each update":        noPolicy,
	"the better score wins":                            noPolicy,
	"equal scores share the flows":                     noPolicy,
	"fewer live flows win":                             noPolicy,
}
