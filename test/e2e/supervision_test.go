package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// pid returns the process of a daemon, or "" if none lives.
func pid(p *labtest.Pando, role string) string {
	out := p.Run(p.Host(), "sh", "-c",
		fmt.Sprintf("n=$(cat /run/pando/%s.pid) && kill -0 $n && echo $n", role))
	if out.Code != 0 {
		return ""
	}
	return strings.TrimSpace(out.Text)
}

func awaitAnother(p *labtest.Pando, role, than string) {
	p.Helper()
	p.Await("another "+role, func() (string, bool) {
		now := pid(p, role)
		return now, now != "" && now != than
	})
}

// No single kill leaves the host without a daemon. The agent and the warden revive each other and
// the server, which has no right to start either.
func TestAWardenBringsEveryDaemonBack(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Warden: true})
	web := p.Deploy(labtest.Echo("web", "scale: {min: 2, max: 4}"))
	before := names(web.AwaitInstances(2))
	held := web.Hold(labtest.Client)
	for _, together := range [][]string{
		{"agent"}, {"server"}, {"warden"}, {"agent", "server"}, {"server", "warden"},
	} {
		was := map[string]string{}
		kill := []string{"kill", "-9"}
		for _, role := range together {
			was[role] = pid(p, role)
			kill = append(kill, was[role])
		}
		p.Must(p.Host(), kill...)
		for _, role := range together {
			awaitAnother(p, role, was[role])
		}
	}
	if after := names(web.AwaitInstances(2)); after != before {
		t.Errorf("the instances are %s, before they were %s", after, before)
	}
	p.Pando("daemons", "restart") // it ends the warden first, and starts another
	web.AwaitPage(labtest.Client)
	if pid(p, "warden") == "" {
		t.Error("pando daemons restart left no warden")
	}
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("a connection was broken: %s", out.Text)
	}
	p.Down(p.Host())
	left := p.Must(p.Host(), "sh", "-c",
		"pgrep -af 'pando(-shim)? (server|agent|warden|shim) ' || true")
	for line := range strings.Lines(left) {
		if !strings.Contains(line, "pgrep") {
			t.Errorf("pando down left: %s", line)
		}
	}
}

// systemctl is a systemctl for a virtual host: it knows the units in a folder, restarts their
// programs as Restart=always does, and starts enabled units at a boot.
const systemctl = `#!/bin/sh
units=%s state=/run/systemd/started
verb=$1; shift
role() { r=${1#pando-}; echo ${r%%.service}; }
up() { kill -0 $(cat /run/pando/$(role $1).pid) 2>/dev/null; }
begin() {
	mkdir -p $state && touch $state/$1
	run=$(sed -n 's/^ExecStart=//p' $units/$1) log=$(sed -n 's/^StandardOutput=append://p' $units/$1)
	loop="while [ -e $state/$1 ]; do $run >>$log 2>&1; sleep 0.2; done"
	setsid sh -c "$loop" </dev/null >/dev/null 2>&1 &
	until up $1; do sleep 0.05; done
}
echo "$verb $*" >>$units/calls
case $verb in
start) for u; do [ -e $state/$u ] || begin $u; done ;;
stop) for u; do
		rm -f $state/$u; kill $(cat /run/pando/$(role $u).pid)
		while up $u; do sleep 0.05; done
	done ;;
enable) for u; do touch $units/$u.enabled; done ;;
disable) for u; do rm -f $units/$u.enabled; done ;;
boot) for u in pando-server.service pando-agent.service; do
		[ ! -e $units/$u.enabled ] || begin $u
	done ;;
esac
`

// machine1 is a virtual host with a systemctl of its own.
type machine1 struct {
	*labtest.Pando
	dir string
}

func newMachine1(t *testing.T) machine1 {
	t.Helper()
	m := machine1{labtest.UpWith(t, labtest.Options{Idle: true}), t.TempDir()}
	if err := os.Chmod(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	units := filepath.Join(m.dir, "units")
	if err := os.MkdirAll(units, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(systemctl, units)
	if err := os.WriteFile(filepath.Join(m.dir, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	m.Must(m.Host(), "mkdir", "-p", "/run/systemd/system")
	return m
}

// do runs a command of pando that may use systemctl.
func (m machine1) do(args ...string) labtest.Output {
	m.Helper()
	line := []string{"env", "PATH=" + m.dir + ":" + os.Getenv("PATH"), m.Bin, args[0],
		"--data-dir", m.Data(m.Host()), "--host", m.Host()}
	line = append(line, args[1:]...)
	return m.Run(m.Host(), line...)
}

func (m machine1) must(args ...string) string {
	m.Helper()
	out := m.do(args...)
	if out.Code != 0 {
		m.Fatalf("pando %s: exit code %d\n%s", strings.Join(args, " "), out.Code, out.Text)
	}
	return out.Text
}

// boot ends every process of the host, removes all that a reboot removes, and starts the units.
func (m machine1) boot() {
	m.Helper()
	m.Must(m.Host(), "sh", "-c", "kill -9 -1; sleep 0.1; "+
		"rm -rf /run/pando /run/systemd/started /sys/fs/bpf/*; nft flush ruleset; "+
		"for l in $(ip -o link | sed -n 's/^[0-9]*: \\(pd[0-9]*\\|pando[^:@]*\\)[:@].*/\\1/p'); do "+
		"ip link del $l; done; true")
	m.Must(m.Host(), filepath.Join(m.dir, "systemctl"), "boot")
}

func TestUnitsBringEverythingBackAfterAReboot(t *testing.T) {
	t.Parallel()
	m := newMachine1(t)
	units := "--unit-dir=" + filepath.Join(m.dir, "units")
	said := m.must("install", units, "--pool", "1")
	if !strings.Contains(said, "pando-server.service and pando-agent.service") {
		t.Errorf("install: %s", said)
	}
	if out := m.do("up", units, "--pool", "2"); out.Code != 2 ||
		!strings.Contains(out.Text, "pando install") {
		t.Errorf("up with flags of the units: exit code %d, %s", out.Code, out.Text)
	}
	m.must("up", units)
	if pid(m.Pando, "warden") != "" {
		t.Error("systemd and a warden both restart the daemons")
	}
	web := m.Deploy(labtest.Echo("web"))
	web.AwaitPage(labtest.Client)
	was := pid(m.Pando, "agent")
	m.Must(m.Host(), "kill", "-9", was)
	awaitAnother(m.Pando, "agent", was)

	m.boot()
	web.AwaitPage(labtest.Client)
	web.AwaitInstances(1)

	if out := m.do("uninstall", units); out.Code == 0 || !strings.Contains(out.Text, "pando down") {
		t.Errorf("uninstall while the agent runs: exit code %d, %s", out.Code, out.Text)
	}
	m.must("down", units, "--now")
	if pid(m.Pando, "agent") != "" || pid(m.Pando, "server") != "" {
		t.Error("pando down left a daemon: its unit started it again")
	}
	m.must("uninstall", units)
	left, _ := filepath.Glob(filepath.Join(m.dir, "units", "*.service*"))
	if len(left) > 0 {
		t.Errorf("uninstall left %v", left)
	}
}
