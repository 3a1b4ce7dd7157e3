package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// slot is a sandbox without a program: namespaces, a veth pair with both ends up, cgroups and a
// waiting shim. It is made ahead of need.
type slot struct {
	Number   int              `json:"number"`
	PID      int              `json:"pid"` // of the shim, on the host
	Started  uint64           `json:"started"`
	IP4      netip.Addr       `json:"ip4"`
	IP6      netip.Addr       `json:"ip6"`
	IfIndex  int              `json:"if_index"`
	Link     string           `json:"link"`
	MAC      string           `json:"mac"`
	HostMAC  string           `json:"host_mac"`
	Instance pando.InstanceID `json:"instance,omitempty"` // empty: still in the pool
	Service  pando.ServiceKey `json:"service,omitzero"`
	Spec     pando.Spec       `json:"spec,omitzero"`
	Layers   bool             `json:"layers,omitempty"`   // its shim can enter an image
	Bundles  bool             `json:"bundles,omitempty"`  // its shim can show a bundle
	Mounts   bool             `json:"mounts,omitempty"`   // its shim mounts volumes
	Configs  bool             `json:"configs,omitempty"`  // its shim keeps configs
	Binds    bool             `json:"binds,omitempty"`    // and folders of the host
	Users    bool             `json:"users,omitempty"`    // its shim makes user namespaces
	Grants   bool             `json:"grants,omitempty"`   // its shim gives devices and a network
	Runtimes bool             `json:"runtimes,omitempty"` // its shim starts programs by a runtime
	Logs     uint64           `json:"logs,omitempty"`     // the folder of logs that its shim holds; 0: unknown
	// Held: its network is sealed, because its program moves. Move is the one that brought it.
	Held   bool            `json:"held,omitempty"`
	Move   *pando.MoveMark `json:"move,omitempty"`
	dir    string
	cgroup pando.Cgroup
	ready  *net.UnixConn // to the shim, ahead of need; may be nil
}

// The far end of every veth. Instances send everything there, without asking for an address first.
var (
	gateway4 = net.IPv4(169, 254, 1, 1)
	gateway6 = net.ParseIP("fe80::1")
)

const linkWaitMax = 3 * time.Second

func (s *slot) control() string { return filepath.Join(s.dir, "control.sock") }
func (s *slot) self() string    { return filepath.Join(s.dir, "self") }

// slot returns the fields that follow from the number of a sandbox.
func (d *Driver) slot(number int) *slot {
	return &slot{Number: number, Link: "pd" + strconv.Itoa(number),
		dir: filepath.Join(d.RunDir, strconv.Itoa(number))}
}

// newSlot makes a ready sandbox. If a step fails, newSlot undoes the earlier ones. With an error it
// returns a slot only if its shim still runs.
func (d *Driver) newSlot(number int) (made *slot, err error) {
	s := d.slot(number)
	s.IP4, s.IP6 = d.addresses(number)
	s.Layers = d.Layers != ""
	s.Bundles, s.Mounts, s.Binds, s.Users = s.Layers, true, true, true
	s.Configs, s.Grants, s.Runtimes = true, true, true
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make sandbox %d: %w", number, err), s.destroy())
			if made = nil; s.alive() {
				made = s
			}
		}
	}()
	if err := os.RemoveAll(s.dir); err != nil {
		return nil, err
	}
	// Only root enters the sandbox's folder. The instance sees self, which is mounted into the
	// sandbox. Neither follows the umask.
	if err := errors.Join(os.MkdirAll(s.self(), 0o711), os.Chmod(s.dir, 0o700),
		os.Chmod(s.self(), 0o711)); err != nil {
		return nil, err
	}
	if s.cgroup, err = d.Cgroups.Make(d.cgroupName(number)); err != nil {
		return nil, err
	}
	if err := s.cgroup.Devices(nil); err != nil {
		return nil, err
	}
	if s.Logs, err = logsOf(d.LogDir); err != nil {
		return nil, err
	}
	live, err := s.startShim(d.Self, wire.Furniture{
		Self: s.self(), Resolv: filepath.Join(s.dir, "resolv.conf"), Logs: d.LogDir, Cgroups: d.Groups,
		Entry: s.cgroup.Entry(), Hidden: d.Hidden, Layers: d.Layers, Files: filesOfPrograms(),
	})
	if err != nil {
		return nil, err
	}
	defer live.Close()
	if err := s.wire(); err != nil {
		return nil, err
	}
	if err := s.save(); err != nil {
		return nil, err
	}
	_, err = live.Write([]byte{1})
	return s, err
}

// logsOf returns the number of the folder of logs, which it makes if the disk was lost.
func logsOf(dir string) (uint64, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return 0, fmt.Errorf("make the folder of the logs: %w", err)
	}
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	return st.Ino, err
}

// lasts returns nil if a ready sandbox still serves. Its shim holds the folder of logs, and that of a lost
// disk takes no log.
func (s *slot) lasts(logs string) error {
	now, err := logsOf(logs)
	if err == nil && s.Logs != 0 && s.Logs != now {
		err = fmt.Errorf("its folder of logs is gone: %w", pando.ErrNotFound)
	}
	return err
}

func (s *slot) save() error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, "slot.json")
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// startShim starts the sandbox's first process in its own namespaces, with the sockets that outlive
// any agent. The process ends by itself unless live reports that the sandbox has a record: without
// one, no agent would find it.
func (s *slot) startShim(self []string, furnish wire.Furniture) (live *os.File, err error) {
	host, _ := os.ReadFile("/etc/resolv.conf")
	text := resolver{}.conf(host)
	if err := os.WriteFile(furnish.Resolv, text, 0o644); err != nil {
		return nil, err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, path := range []string{s.control(), filepath.Join(s.self(), "self.sock")} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return nil, err
		}
		l.SetUnlinkOnClose(false)
		if path == s.control() {
			err = os.Chmod(path, 0o600)
		}
		if err != nil {
			l.Close()
			return nil, err
		}
		f, err := l.File()
		l.Close()
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	f, err := s.listenNotify()
	if err != nil {
		return nil, err
	}
	files = append(files, f)
	log, err := os.Create(filepath.Join(s.dir, "shim.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	wait, live, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	files = append(files, wait)
	cmd := exec.Command(self[0], append(self[1:], wire.ShimRole, furnish.Argument())...)
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr, cmd.Dir = files, log, log, "/"
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWNET,
	}
	if err := cmd.Start(); err != nil {
		live.Close()
		return nil, fmt.Errorf("start a shim: %w; pando needs root", err)
	}
	s.PID = cmd.Process.Pid
	_, s.Started, err = processAt(s.PID)
	go reap(cmd.Process) // no zombie stays while this agent lives
	if err != nil {
		live.Close() // the shim ends
		return nil, fmt.Errorf("start a shim: %w", err)
	}
	return live, nil
}

// listenNotify makes the socket for the program's sd_notify datagrams.
func (s *slot) listenNotify() (*os.File, error) {
	notify, err := net.ListenUnixgram("unixgram",
		&net.UnixAddr{Name: filepath.Join(s.self(), "notify.sock"), Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	defer notify.Close()
	return notify.File()
}

// reap waits for the end of a child. The runtime polls its pidfd, so no thread waits per sandbox.
func reap(p *os.Process) {
	pid := p.Pid
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err == nil {
		f := os.NewFile(uintptr(fd), "pidfd")
		defer f.Close()
		var c syscall.RawConn
		if c, err = f.SyscallConn(); err == nil {
			err = c.Read(func(uintptr) bool {
				n, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
				return n == pid || err != nil && err != unix.EINTR
			})
		}
	}
	if err != nil {
		_, _ = p.Wait() // this kernel cannot poll it: a thread waits
		return
	}
	_ = p.Release() // the process is gone
}

// startTime distinguishes a process from a later one with the same number. It is 0 for a process
// that is gone.
func startTime(pid int) uint64 {
	_, started, _ := processAt(pid)
	return started
}

// processAt returns the state of a process, as in proc_pid_stat(5), and its start time. Both are 0
// for a process that is gone. An error says that the answer is unknown.
func processAt(pid int) (state byte, started uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	fields := wire.SplitStat(string(b))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("%w: /proc/%d/stat has %d fields", pando.ErrInvalid, pid, len(fields))
	}
	started, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], started, err
}

// alive reports whether the shim runs. Nothing is concluded from an error such as EMFILE: a shim
// that may run is alive, and so is its program.
func (s *slot) alive() bool {
	state, started, err := processAt(s.PID)
	return s.Started != 0 && (err != nil || started == s.Started && state != 'Z')
}

// stopped reports whether a signal has stopped the shim.
func (s *slot) stopped() bool {
	state, started, _ := processAt(s.PID)
	return started == s.Started && (state == 'T' || state == 't')
}

func (s *slot) netns() string { return fmt.Sprintf("/proc/%d/ns/net", s.PID) }

// wire joins the sandbox to the host. Addresses, routes and neighbours all exist before the first
// packet.
func (s *slot) wire() error {
	ns, err := netns.GetFromPath(s.netns())
	if err != nil {
		return err
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer inside.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0",
		PeerNamespace: netlink.NsFd(int(ns))}
	veth.Name = s.Link
	if old, err := netlink.LinkByName(s.Link); err == nil {
		_ = netlink.LinkDel(old)
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make its link: %w", err)
	}
	outer, err := netlink.LinkByName(s.Link)
	if err != nil {
		return err
	}
	inner, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	s.IfIndex, s.HostMAC, s.MAC = outer.Attrs().Index, outer.Attrs().HardwareAddr.String(),
		inner.Attrs().HardwareAddr.String()
	lo, err := inside.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := s.sysctls(ns); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return inside.LinkSetUp(lo) },
		func() error { return localLater(inside) },
		func() error { return inside.AddrAdd(inner, wire.HostAddress(s.IP4)) },
		func() error { return inside.AddrAdd(inner, wire.HostAddress(s.IP6)) },
		func() error { return inside.LinkSetUp(inner) },
		func() error { return netlink.LinkSetUp(outer) },
		func() error { return inside.NeighAdd(neighbour(inner, gateway4, s.HostMAC)) },
		func() error { return inside.NeighAdd(neighbour(inner, gateway6, s.HostMAC)) },
		func() error { return inside.RouteAdd(defaultRoute(inner, gateway4, s.IP4)) },
		func() error { return inside.RouteAdd(defaultRoute(inner, gateway6, s.IP6)) },
		func() error { return netlink.NeighSet(neighbour(outer, s.IP4.AsSlice(), s.MAC)) },
		func() error { return netlink.NeighSet(neighbour(outer, s.IP6.AsSlice(), s.MAC)) },
		func() error { return netlink.RouteReplace(hostRoute(outer, s.IP4)) },
		func() error { return netlink.RouteReplace(hostRoute(outer, s.IP6)) },
		func() error { return bothUp(inside, s.IfIndex, inner.Attrs().Index) },
	}
	for n, step := range steps {
		if err := step(); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("wire it (step %d): %w", n, err)
		}
	}
	return nil
}

// end kills the shim and waits until the kernel has ended every process of the sandbox. It checks
// the process after it opens the pidfd, so that it never kills a later process with the shim's
// number.
func (s *slot) end() error {
	fd, err := unix.PidfdOpen(s.PID, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reach the shim of sandbox %d: %w", s.Number, err)
	}
	defer unix.Close(fd)
	if !s.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill the shim of sandbox %d: %w", s.Number, err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}},
			int(endWaitMax.Milliseconds()))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("%w: sandbox %d has not ended %s after SIGKILL", pando.ErrNotReady, s.Number,
				endWaitMax)
		default:
			return nil
		}
	}
}

const endWaitMax = 5 * time.Second

// destroy ends the sandbox and removes what it has on the host. While a process of it may run, its
// record stays, so that a later agent finds it.
func (s *slot) destroy() error {
	var errs []error
	if s.ready != nil {
		s.ready.Close()
	}
	if s.PID != 0 {
		if err := s.end(); err != nil {
			return err
		}
	}
	if l, err := netlink.LinkByName(s.Link); err == nil {
		// The kernel may be faster: the link ends with the namespace of its other end.
		if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
		}
	}
	if s.cgroup != nil {
		errs = append(errs, s.cgroup.Remove())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// filesOfPrograms is the bound of open files that programs of this process have. Go raises the
// bound of the process itself, and keeps the former one for its children.
var filesOfPrograms = sync.OnceValue(func() uint64 {
	out, err := exec.Command("/bin/sh", "-c", "ulimit -Sn").Output()
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64) // "unlimited" is 0
	return n
})
