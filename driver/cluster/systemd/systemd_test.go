package systemd

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

func agent(exec ...string) Unit {
	return Unit{
		Name: "pando-agent", Description: "Pando agent", Exec: exec, Delegate: true,
		After: []string{"pando-server.service"}, Log: "/var/log/agent.log",
	}
}

func TestAUnitRestartsForEverAndKeepsInstances(t *testing.T) {
	text := agent("/usr/bin/pando", "agent", "--host", "h1").Text()
	for _, want := range []string{
		"Type=notify\n", "Restart=always\n", "StartLimitIntervalSec=0\n", "WatchdogSec=60\n",
		"KillMode=process\n", "Delegate=yes\n", "WantedBy=multi-user.target\n",
		"After=network-online.target pando-server.service\n",
		"ExecStart=/usr/bin/pando agent --host h1\n",
		"StandardError=append:/var/log/agent.log\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the unit lacks %q:\n%s", want, text)
		}
	}
	server := Unit{Name: "pando-server", Exec: []string{"/p"}}.Text()
	if strings.Contains(server, "Delegate") || strings.Contains(server, "append") {
		t.Errorf("a unit with neither groups nor a log:\n%s", server)
	}
}

func TestWordsReachTheProgramUnchanged(t *testing.T) {
	for _, c := range []struct{ word, want string }{
		{"plain", "plain"}, {"", `""`}, {"two words", `"two words"`}, {"100%", "100%%"},
		{"$HOME", "$$HOME"}, {`a\b`, `"a\\b"`}, {`say "x"`, `"say \"x\""`}, {"a\nb", `"a\nb"`},
		{"a;b", `"a;b"`}, {"it's", `"it's"`},
	} {
		if got := command([]string{"/p", c.word}); got != "/p "+c.want {
			t.Errorf("%q: got %s, want /p %s", c.word, got, c.want)
		}
	}
}

func TestADaemonIsFencedIn(t *testing.T) {
	server := Unit{Name: "pando-server", Exec: []string{"/p"}, OOMScore: -500,
		Folders: []string{"/var/lib/a b", "/run/p"}, Capabilities: []string{"CAP_CHOWN", "CAP_SETUID"}}
	for _, want := range append(slices.Clone(fences), "OOMScoreAdjust=-500",
		"CapabilityBoundingSet=CAP_CHOWN CAP_SETUID", `ReadWritePaths="/var/lib/a b" /run/p`,
		`ExecStartPre=+/bin/mkdir -p "/var/lib/a b" /run/p`) {
		if !strings.Contains(server.Text(), "\n"+want+"\n") {
			t.Errorf("the unit lacks %q:\n%s", want, server.Text())
		}
	}
	// An agent mounts for its host, and a program of an image may be setuid in its own users.
	open := agent("/p").Text()
	for _, not := range []string{"ProtectSystem", "NoNewPrivileges", "MemoryMax", "ReadWritePaths"} {
		if strings.Contains(open, not) {
			t.Errorf("an agent's unit has %s", not)
		}
	}
}

// systemd itself checks the units: an unknown directive is an error.
func TestSystemdAcceptsTheUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	dir := t.TempDir()
	odd := filepath.Join(dir, "a 100% \"odd\" $place")
	if err := os.MkdirAll(odd, 0o755); err != nil {
		t.Fatal(err)
	}
	server := Unit{Name: "pando-server", Description: "Pando server",
		Exec: []string{"/bin/true", "server", "--data-dir", odd}, Log: filepath.Join(odd, "log"),
		OOMScore: -500, Folders: []string{odd, "/run/pando"}, Capabilities: []string{"CAP_CHOWN"}}
	for _, u := range []Unit{server, agent("/bin/true", "agent", "--data-dir", odd)} {
		path := filepath.Join(dir, u.File())
		if err := os.WriteFile(path, []byte(u.Text()), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(analyze, "verify", "--man=no", path)
		cmd.Env = append(os.Environ(), "SYSTEMD_LOG_LEVEL=warning")
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), u.File()) {
			t.Errorf("systemd-analyze verify %s: %v\n%s\n%s", u.File(), err, out, u.Text())
		}
	}
}

// fakeSystemctl puts a systemctl into PATH that writes its arguments to a file, and fails if the
// file fail exists.
func fakeSystemctl(t *testing.T) (m Manager, calls func() []string, dir string) {
	t.Helper()
	dir = t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >>" + dir + "/calls\n" +
		"[ ! -e " + dir + "/fail ] || { echo it is broken; exit 3; }\n"
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	calls = func() []string {
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil {
			return nil
		}
		_ = os.Remove(filepath.Join(dir, "calls"))
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	return Manager{Dir: filepath.Join(dir, "units"), Booted: dir}, calls, dir
}

func TestInstallAndRemove(t *testing.T) {
	m, calls, dir := fakeSystemctl(t)
	if m.Installed("pando-agent") {
		t.Fatal("nothing is installed yet")
	}
	server := Unit{Name: "pando-server", Exec: []string{"/p", "server"}}
	if err := m.Install(t.Context(), server, agent("/p", "agent")); err != nil {
		t.Fatal(err)
	}
	want := []string{"daemon-reload", "enable pando-server.service pando-agent.service"}
	if got := calls(); !slices.Equal(got, want) || !m.Installed("pando-agent") {
		t.Errorf("install: %q, want %q", got, want)
	}
	if err := errors.Join(m.Start(t.Context(), "pando-server"), m.Stop(t.Context(), "pando-agent"),
		m.Remove(t.Context(), "pando-agent", "pando-none")); err != nil {
		t.Fatal(err)
	}
	want = []string{"start pando-server.service", "stop pando-agent.service",
		"disable pando-agent.service", "daemon-reload"}
	if got := calls(); !slices.Equal(got, want) || m.Installed("pando-agent") {
		t.Errorf("then: %q, want %q", got, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "fail"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), "pando-server"); err == nil ||
		!strings.Contains(err.Error(), "it is broken") {
		t.Errorf("a failed start: %v", err)
	}
	m.Booted = filepath.Join(dir, "missing")
	if err := m.Install(t.Context(), server); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("without systemd: %v", err)
	}
}

// A unit of the operator under the same name is neither replaced nor removed.
func TestAUnitOfAnotherHandStays(t *testing.T) {
	m, _, _ := fakeSystemctl(t)
	if err := os.Mkdir(m.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const text = "[Service]\nExecStart=/usr/local/bin/mine\n"
	if err := os.WriteFile(m.file("pando-agent"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	err := m.Install(t.Context(), Unit{Name: "pando-server", Exec: []string{"/p"}}, agent("/p"))
	if !errors.Is(err, pando.ErrExists) || !strings.Contains(err.Error(), "pando-agent.service") {
		t.Errorf("install: %v", err)
	}
	if m.Installed("pando-server") || m.Installed("pando-agent") {
		t.Error("some units are installed")
	}
	if err := m.Remove(t.Context(), "pando-agent"); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(m.file("pando-agent")); err != nil || string(got) != text {
		t.Errorf("the unit is %q, %v", got, err)
	}
}

// notified receives what a daemon tells systemd.
func notified(t *testing.T) *net.UnixConn {
	t.Helper()
	at := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", at)
	return c
}

func hear(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	b := make([]byte, 256)
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestADaemonTellsThatItIsReadyAndLives(t *testing.T) {
	c := notified(t)
	Ready()
	if got := hear(t, c); got != "READY=1" {
		t.Errorf("ready: %q", got)
	}
	t.Setenv("WATCHDOG_USEC", "3000")
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, clock.Clock{}, func() {})
	}()
	for range 3 {
		if got := hear(t, c); got != "WATCHDOG=1" {
			t.Errorf("alive: %q", got)
		}
	}
	end()
	<-done
	t.Setenv("WATCHDOG_USEC", "")
	Watch(t.Context(), clock.Clock{}, func() { t.Error("without a watchdog it asks") })
}

func TestADaemonThatIsStuckFallsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var told atomic.Int64
		stuck := make(chan struct{})
		go watch(ctx, clock.Clock{}, time.Minute, func() {
			if told.Load() == 3 {
				<-stuck
			}
		}, func() { told.Add(1) })
		time.Sleep(time.Hour)
		if n := told.Load(); n != 3 {
			t.Errorf("told %d times while it was stuck after 3", n)
		}
		close(stuck)
		time.Sleep(time.Hour)
		if n := told.Load(); n < 100 {
			t.Errorf("told %d times after an hour of health", n)
		}
		end()
		synctest.Wait()
	})
}
