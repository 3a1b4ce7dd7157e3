package cli

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A listener that is stopped is named with its process and the command that continues it.
func TestAStoppedListenerIsNamed(t *testing.T) {
	if os.Getenv("PANDO_TEST_LISTEN") != "" { // it is killed, and leaves no folder
		l, err := net.Listen("unix", os.Getenv("PANDO_TEST_LISTEN"))
		for err == nil { // until the test kills it
			_, err = l.Accept()
		}
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "api.sock")
	c := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	c.Env = append(os.Environ(), "PANDO_TEST_LISTEN="+socket)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	pid := strconv.Itoa(c.Process.Pid)
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); {
			if time.Now().After(end) {
				t.Fatalf("waited 20 s for %s", what)
			}
			unix.Nanosleep(&unix.Timespec{Nsec: int64(time.Millisecond)}, nil)
		}
	}
	var who string
	until("the listener", func() bool { who = ListenerOf(socket); return who != "" })
	if !strings.Contains(who, "process "+pid) || strings.Contains(who, "stopped") {
		t.Errorf("it runs, and it is %q", who)
	}
	if err := unix.Kill(c.Process.Pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until("its stop", func() bool { return isStopped(int32(c.Process.Pid)) })
	if who = ListenerOf(socket); !strings.Contains(who, "`kill -CONT "+pid+"`") {
		t.Errorf("it is stopped, and it is %q", who)
	}
	if who := ListenerOf(socket + ".none"); who != "" {
		t.Errorf("a socket without a listener has the listener %q", who)
	}
}
