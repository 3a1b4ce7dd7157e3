package fault

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// `pando down` breaks no connection that ends in time, and loses no write, committed or not.
func TestDownDrainsAndMerges(t *testing.T) {
	t.Parallel()
	s := newSite(t, labtest.Options{})
	s.deploy()
	echo := s.Deploy(labtest.Echo("echo"))
	held := echo.Hold(labtest.Client)
	var lines []string
	for n, i := range s.web.Status().Instances {
		line := "line-of-" + string(i.ID)
		if text, ok := s.askWith(i, "PATCH", "/state/log", line); !ok {
			t.Fatalf("write: %s", text)
		}
		if text, ok := "", true; n == 0 {
			if text, ok = s.ask(i, "POST", "/state/commit"); !ok {
				t.Fatalf("commit: %s", text)
			}
		}
		lines = append(lines, line)
	}
	down := s.Start(s.Host(), append([]string{s.Bin, "down", "--drain", "1m"}, s.place()...)...)
	echo.Await("its instance draining, and no other in its place", func(st pando.ServiceStatus) bool {
		return len(st.Instances) == 1 && st.Instances[0].Phase == pando.PhaseDraining
	})
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("a connection that ends in time was broken: %s", out.Text)
	}
	if out := down.Wait(); out.Code != 0 || !strings.Contains(out.Text, "pando is down") ||
		strings.Contains(out.Text, "killed") {
		t.Errorf("down: code %d: %s", out.Code, out.Text)
	}

	st := s.settle(least, least)
	log, _ := s.ask(st.Instances[0], "GET", "/state/log")
	for _, line := range lines {
		if strings.Count(log, line+"\n") != 1 {
			t.Errorf("after up, %s is in the log %d times", line, strings.Count(log, line+"\n"))
		}
	}
	echo.AwaitInstances(1)
	held = echo.Hold(labtest.Client)
	began := time.Now()
	s.Down(s.Host(), "--drain", "500ms")
	if took := time.Since(began); took < 500*time.Millisecond || took > 20*time.Second {
		t.Errorf("down with a connection that stays took %s, of which 0.5 s are its drain", took)
	}
	held.Stop()
	s.Up(s.Host())
	s.settle(least, least)
	s.Pando.Pando("rm", "echo", "--wait")
	s.nothingLeft()
}

// place returns the flags with the data folder and the name of the host's daemons.
func (s *site) place() []string {
	return []string{"--data-dir", s.Data(s.Host()), "--host", s.Host()}
}
