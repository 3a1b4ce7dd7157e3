package unit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/sandbox/cgroup"
)

// This program is also the unit of the tests: the driver runs it with the argument member.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "member" {
		os.Exit(member(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// member is a unit that serves no packets. Its argument --as selects its behaviour.
func member(args []string) int {
	value := func(flag string) string { return args[slices.Index(args, flag)+1] }
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return 3
	}
	switch value("--as") {
	case "refuses":
		fmt.Println("the module is missing")
		return 1
	case "hangs":
		select {}
	}
	status := pando.UnitStatus{Name: value("--name"), Traps: args}
	devices, err := net.Interfaces()
	if err != nil {
		return 3
	}
	for _, d := range devices {
		status.Devices = append(status.Devices, d.Name)
	}
	text, err := json.Marshal(status)
	if err != nil {
		return 3
	}
	server, err := Listen(ControlSocket(value("--run-dir"), value("--name")),
		func(context.Context, string) []byte { return text })
	if err != nil {
		return 3
	}
	defer server.Close()
	id, err := strconv.Atoi(value("--unit"))
	if err != nil {
		return 3
	}
	var word [8]byte
	word[0] = 42
	if _, err := unix.Pwrite(memoryFD, word[:], int64(8*((1+id)*pageWords+reportWaits))); err != nil {
		return 3
	}
	leave := make(chan os.Signal, 1)
	signal.Notify(leave, unix.SIGTERM)
	fmt.Println("ready")
	os.Stdout.Close()
	fmt.Fprintln(os.Stderr, "a line of the unit")
	<-leave
	fmt.Fprintln(os.Stderr, string(text))
	return 0
}

// open returns a driver. Its units behave in one way.
func open(t *testing.T, as string, more func(*Config)) *Driver {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Name: fmt.Sprintf("test%d", os.Getpid()), Tenant: "unittest", Flags: []string{"--as", as},
		Ports: [2]int{1, 2}, UnitBits: 5, Gap: time.Millisecond, RunDir: t.TempDir(), DataDir: "data",
		Binary: own, Clock: clock.Clock{}, Log: io.Discard,
	}
	if more != nil {
		more(&c)
	}
	if err := os.Mkdir(filepath.Join(c.RunDir, c.Name), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// start starts a unit. The unit ends before the driver closes.
func start(t *testing.T, d *Driver, id int) pando.Unit {
	t.Helper()
	u, err := d.Start(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Kill)
	return u
}

// device makes a device pair until the end of the test.
func device(t *testing.T, name string, mtu int) {
	t.Helper()
	attrs := netlink.LinkAttrs{Name: name, MTU: mtu}
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "p" + name[2:], PeerMTU: uint32(mtu)}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(link) }) // the driver may have deleted it
}

func TestAUnitRunsInANamespaceWithOneDevice(t *testing.T) {
	d := open(t, "serves", func(c *Config) {
		wire := fmt.Sprintf("ptunit%d", os.Getpid()%100_000)
		device(t, wire, 1400)
		c.Devices, c.HeaderBytes = []string{wire}, 72
		device(t, deviceOf(c.Name, 5), 1500) // a killed group left it
	})
	u := start(t, d, 5)
	link, err := netlink.LinkByName(u.Device())
	if err != nil || link.Attrs().MTU != 1400+72+tagsBytes || len(u.Device()) > 15 {
		t.Errorf("the device is %+v (%v)", link, err)
	}
	s, err := u.Status()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(s.Devices)
	if s.Name != d.Name(5) || u.Name() != s.Name || !slices.Equal(s.Devices, []string{"lo", "unit"}) {
		t.Errorf("unit %s has the devices %v", s.Name, s.Devices)
	}
	if loads, err := d.Memory().Loads(1 << 5); err != nil || loads[5].Waiting != 42 {
		t.Errorf("the unit's report in the shared memory is %+v (%v)", loads[5], err)
	}
	const want = "--tenant unittest --unit 5 --ports 1-2 --gap-ns 1000000 --memory-fd 3 " +
		"--nominal-bits 5"
	if args := strings.Join(s.Traps, " "); !strings.Contains(args, want) {
		t.Errorf("the arguments are %s", args)
	}
	if lo, err := os.ReadDir(d.folder(5)); err != nil || len(lo) != 1 {
		t.Errorf("the unit's folder has %v (%v)", lo, err)
	}
}

func TestALeavingUnitLeavesItsAccountAlone(t *testing.T) {
	d := open(t, "serves", nil)
	u := start(t, d, 0)
	u.Leave()
	end := u.Wait()
	if end.Exit != "exit status 0" || end.Account == nil || end.Account.Name != d.Name(0) ||
		!slices.Equal(end.Lines, []string{"a line of the unit"}) {
		t.Errorf("its end is %+v", end)
	}
	if _, err := os.Stat(d.folder(0)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
	if _, err := u.Status(); err == nil {
		t.Error("an ended unit has a status")
	}
}

func TestAKilledUnitHasNoAccount(t *testing.T) {
	u := start(t, open(t, "serves", nil), 0)
	u.Kill()
	if end := u.Wait(); end.Exit != "signal: killed" || end.Account != nil || end.Cause != "" {
		t.Errorf("its end is %+v", end)
	}
}

func TestAUnitThatRefusesToStartNamesItsReason(t *testing.T) {
	d := open(t, "refuses", nil)
	_, err := d.Start(t.Context(), 0)
	const reason = ".0: the module is missing"
	if !errors.Is(err, pando.ErrInvalid) || !strings.HasSuffix(err.Error(), reason) {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(d.folder(0)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
}

func TestAStartEndsWithItsContext(t *testing.T) {
	d := open(t, "hangs", nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := d.Start(ctx, 0)
		done <- err
	}()
	cancel()
	const reason = "before it was ready: signal: killed"
	if err := <-done; err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("the error is %v", err)
	}
}

func TestUnitsEndWithTheirDriver(t *testing.T) {
	d := open(t, "serves", func(c *Config) { c.OutputLog = true })
	u := start(t, d, pando.LogUnit)
	if !strings.HasSuffix(u.Name(), ".log") {
		t.Errorf("the output log is called %s", u.Name())
	}
	close(d.starter.ask) // as if the group was killed
	d.starter = nil
	if end := u.Wait(); end.Exit != "signal: killed" {
		t.Errorf("its end is %+v", end)
	}
}

func TestALimitedUnitHasAControlGroup(t *testing.T) {
	groups, err := cgroup.Open(cgroup.Root)
	if err != nil {
		t.Skip("needs control groups:", err)
	}
	d := open(t, "serves", func(c *Config) {
		c.Limits = pando.Resources{MemoryBytes: 64 << 20}
		c.Cgroups, c.CgroupRoot = groups, cgroup.Root
	})
	u := start(t, d, 0)
	s, err := u.Status()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(s.Traps, "--cgroup")
	if at < 0 || !slices.Contains(s.Traps, "--unit-memory-mib") {
		t.Fatalf("the arguments are %v", s.Traps)
	}
	entry := s.Traps[at+1]
	if _, err := os.Stat(entry); err != nil {
		t.Error(err)
	}
	u.Kill()
	u.Wait()
	if _, err := os.Stat(entry); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the control group is left: %v", err)
	}
}

func TestUnitsGetSocketsForUDP(t *testing.T) {
	d := open(t, "serves", func(c *Config) { c.Exchange = "udp" })
	s, err := start(t, d, 7).Status()
	if err != nil {
		t.Fatal(err)
	}
	fd, peers := slices.Index(s.Traps, "--udp-fd"), slices.Index(s.Traps, "--peers")
	if fd < 0 || peers < 0 {
		t.Fatalf("the arguments are %v", s.Traps)
	}
	addresses := strings.Split(s.Traps[peers+1], ",")
	if s.Traps[fd+1] != fmt.Sprint(3+1+pando.UnitsMax) || len(addresses) != pando.UnitsMax {
		t.Errorf("descriptor %s, %d peers", s.Traps[fd+1], len(addresses))
	}
	name, err := unix.Getsockname(int(d.sockets[7].Fd()))
	if own, ok := name.(*unix.SockaddrInet4); err != nil || !ok ||
		addresses[7] != fmt.Sprintf("127.0.0.1:%d", own.Port) {
		t.Errorf("its own address is %s, its socket's %+v (%v)", addresses[7], name, err)
	}
}
