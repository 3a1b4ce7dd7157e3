package ovs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"pando.run/pando"
)

// RunDir is the folder in which the programs of Debian's package put their sockets.
const RunDir = "/run/openvswitch"

// commandMax bounds one command to the switch. A living switch answers within milliseconds.
const commandMax = 10 * time.Second

// the programs that the driver runs.
const (
	vsctl  = "ovs-vsctl"
	ofctl  = "ovs-ofctl"
	appctl = "ovs-appctl"
)

// vswitch is a running Open vSwitch. Its methods run the commands of the package.
type vswitch struct {
	dir    string // of its sockets
	bridge string
}

// Missing returns nil if an Open vSwitch of a folder can steer, else the reason and the next
// command.
func Missing(runDir string) error {
	for _, name := range []string{vsctl, ofctl, appctl} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%w: there is no %s; apt-get install openvswitch-switch",
				pando.ErrUnsupported, name)
		}
	}
	out, err := exec.Command(vsctl, "--version").Output()
	if err != nil {
		return fmt.Errorf("ask for the version of Open vSwitch: %w", err)
	}
	if version := lastWord(firstLine(string(out))); !recent(version) {
		return fmt.Errorf("%w: Open vSwitch %s is older than 3.1; upgrade openvswitch-switch",
			pando.ErrUnsupported, version)
	}
	if _, err := os.Stat(filepath.Join(runDir, "db.sock")); err != nil {
		return fmt.Errorf("%w: no Open vSwitch runs at %s; systemctl start openvswitch-switch, "+
			"or name its folder with --ovs-run", pando.ErrUnsupported, runDir)
	}
	s := vswitch{dir: runDir}
	if _, err := s.unixctl(context.Background(), "version"); err != nil {
		return fmt.Errorf("%w: the database of Open vSwitch runs, and ovs-vswitchd does not answer: "+
			"%w; systemctl restart openvswitch-switch", pando.ErrUnsupported, err)
	}
	return nil
}

// recent reports whether a version is at least 3.1.
func recent(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err1 == nil && err2 == nil && (a > 3 || a == 3 && b >= 1)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func lastWord(line string) string {
	if words := strings.Fields(line); len(words) > 0 {
		return words[len(words)-1]
	}
	return ""
}

// run runs one program with a text as its input, and returns its output.
func (s vswitch) run(ctx context.Context, in, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandMax)
	defer cancel()
	var out, complaint bytes.Buffer
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), "OVS_RUNDIR="+s.dir)
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(in), &out, &complaint
	if err := c.Run(); err != nil {
		said := firstLine(strings.TrimSpace(complaint.String()))
		if _, ok := errors.AsType[*exec.ExitError](err); ok && said != "" {
			return "", errors.New(said)
		}
		return "", fmt.Errorf("run %s: %w %s", name, err, said)
	}
	return out.String(), nil
}

// database changes or reads the configuration. It returns when the switch has applied a change.
func (s vswitch) database(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--db=unix:" + filepath.Join(s.dir, "db.sock"), "--timeout=5"}, args...)
	return s.run(ctx, "", vsctl, args...)
}

// openflow speaks OpenFlow to the bridge.
func (s vswitch) openflow(ctx context.Context, in, verb string, args ...string) (string, error) {
	at := "unix:" + filepath.Join(s.dir, s.bridge+".mgmt")
	return s.run(ctx, in, ofctl, append([]string{"-O", "OpenFlow15", verb, at}, args...)...)
}

// bundle applies changes of flows and groups as one transaction.
func (s vswitch) bundle(ctx context.Context, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	_, err := s.openflow(ctx, strings.Join(lines, "\n")+"\n", "bundle", "-")
	return err
}

// unixctl asks the switch's program itself.
func (s vswitch) unixctl(ctx context.Context, words ...string) (string, error) {
	target := "ovs-vswitchd"
	if pid, err := os.ReadFile(filepath.Join(s.dir, "ovs-vswitchd.pid")); err == nil {
		target = filepath.Join(s.dir, "ovs-vswitchd."+strings.TrimSpace(string(pid))+".ctl")
	}
	return s.run(ctx, "", appctl, append([]string{"-t", target}, words...)...)
}

// settle waits until the cached decisions agree with the tables, and the counters with both.
func (s vswitch) settle(ctx context.Context) error {
	_, err := s.unixctl(ctx, "revalidator/wait")
	return err
}

// port adds a device to the bridge, and returns its number.
func (s vswitch) port(ctx context.Context, device string, options ...string) (uint16, error) {
	args := []string{"--", "--may-exist", "add-port", s.bridge, device}
	if len(options) > 0 {
		args = append(append(args, "--", "set", "interface", device), options...)
	}
	if _, err := s.database(ctx, args...); err != nil {
		return 0, fmt.Errorf("add %s to the bridge %s: %w", device, s.bridge, err)
	}
	text, err := s.database(ctx, "get", "interface", device, "ofport")
	if err != nil {
		return 0, fmt.Errorf("find the port of %s: %w", device, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n <= 0 || n >= portMax {
		why, _ := s.database(ctx, "get", "interface", device, "error")
		return 0, fmt.Errorf("%w: the switch took no port %s (%s)", pando.ErrNotReady, device,
			strings.TrimSpace(why))
	}
	return uint16(n), nil
}

// portMax is the first number that is no port of a device.
const portMax = 0xff00

// unplug takes a device from the bridge.
func (s vswitch) unplug(ctx context.Context, device string) error {
	_, err := s.database(ctx, "--", "--if-exists", "del-port", s.bridge, device)
	return err
}
