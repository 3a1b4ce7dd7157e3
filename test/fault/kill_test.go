package fault

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// The failpoints of each verb, in the order of its journey.
var failpoints = []struct{ verb, name string }{
	{"replicate", "replicate prepared"},  // agent: the program is loaded, the ask is durable or not
	{"replicate", "replicate asked"},     // agent: the ask is durable, and no answer has arrived
	{"replicate", "decided"},             // server: granted, not written
	{"replicate", "decision written"},    // server: granted and placed
	{"replicate", "replicate started"},   // agent: the program runs, nothing is recorded
	{"replicate", "replicate connected"}, // agent: and it has its API
	{"replicate", "replicate in rotation"},
	{"leave", "halt asked"},
	{"leave", "halt granted"},  // agent: durable, not acknowledged by any ingress
	{"leave", "merge written"}, // agent: the objects are durable, main has not moved
	{"leave", "merge swapped"}, // agent: main has moved, the branch does not show it yet
	{"leave", "merge noted"},
	{"leave", "die merged"},
	{"leave", "die recorded"},
	{"leave", "die removed"},   // agent: the sandbox is gone, its record is not
	{"leave", "die forgotten"}, // agent: the record is gone, the branch is not
}

// A crash of the agent or the server fails no request, at any failpoint.
func TestKilledAtEveryFailpoint(t *testing.T) {
	t.Parallel()
	s := newSite(t, labtest.Options{Tags: []string{"failpoints"}})
	s.deploy()
	for _, f := range failpoints {
		ok := t.Run(f.name, func(t *testing.T) {
			began := time.Now()
			c := s.in(t)
			v := c.load(func() { c.crash(f.verb, f.name, false) })
			s.acked, s.loads = c.acked, c.loads
			for _, why := range v.Failed {
				t.Errorf("a request failed: %s", why)
			}
			if v.Answered == 0 {
				t.Error("nothing was asked")
			}
			t.Logf("%d requests in %s", v.Answered, time.Since(began).Round(time.Millisecond))
		})
		if !ok {
			return // the next cases depend on it
		}
	}
	s.verify()
	s.nothingLeft()
}

// These constants bound how long clients may hit an instance that has ended. An idle machine
// notices the end within notice. On a busy machine each thread on the way also waits for one
// scheduler turn. The way leads from the kernel through the shim and the agent into the table.
const (
	notice = 10 * time.Millisecond
	turns  = 6
)

// A crash of an instance loses only the work of that instance, at any failpoint.
func TestAnInstanceKilledAtEveryFailpoint(t *testing.T) {
	s := newSite(t, labtest.Options{Tags: []string{"failpoints"}})
	s.deploy()
	for _, f := range failpoints {
		if f.verb != "leave" && f.name != "replicate asked" && f.name != "decision written" {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			c := s.in(t)
			v := c.load(func() { c.crash(f.verb, f.name, true) })
			s.acked, s.loads = c.acked, c.loads
			if most := notice + turns*v.Late; v.Failing > most {
				t.Errorf("requests failed for %s, want at most %s (the client was woken %s late at worst); "+
					"%d of %d: %v",
					v.Failing, most, v.Late, len(v.Failed), v.Answered, v.Failed)
			}
		})
	}
	s.verify()
	s.nothingLeft()
}

// crash runs one verb into a failpoint and lets everything recover.
func (s *site) crash(verb, name string, instance bool) {
	s.Helper()
	st := s.web.Status()
	asker := youngest(st)
	if verb == "leave" {
		asker = s.oneMore(st)
	}
	victim := 0
	if instance {
		if victim = s.program(asker.ID); victim == 0 {
			s.Fatalf("the program of %s is not found", asker.ID)
		}
	}
	s.arm(name, victim)
	verbs := []string{"/replicate"}
	if verb == "leave" {
		verbs = []string{"/halt", "/state/push", "/die"}
	}
	s.Await("the failpoint "+name, func() (string, bool) {
		said := ""
		for _, v := range verbs {
			if !s.armed() {
				return "", true
			}
			said, _ = s.ask(asker, "POST", v)
		}
		return said, !s.armed()
	})
	s.serving()
	if verb == "leave" && !instance {
		s.leave(asker)
	}
	for after := s.serving(); len(after.Instances) > least; after = s.serving() {
		s.leave(youngest(after))
	}
}

// serving waits as settle does, but accepts an instance that is leaving and waits for its next
// request.
func (s *site) serving() pando.ServiceStatus {
	s.Helper()
	s.restart()
	return s.web.Await("enough in rotation", func(st pando.ServiceStatus) bool {
		moving := 0
		for _, i := range st.Instances {
			// the daemon still lived when restart looked: a failpoint disarms before it kills
			if i.Away != "" {
				s.restart()
			}
			if i.Phase == pando.PhasePlaced || i.Phase == pando.PhaseStarting ||
				i.Phase == pando.PhaseReady ||
				i.Phase == pando.PhaseFailed || i.Phase == pando.PhaseMerged {
				moving++
			}
		}
		return st.InRotation >= least && moving == 0
	})
}

// oneMore replicates and returns the new instance.
func (s *site) oneMore(before pando.ServiceStatus) pando.InstanceStatus {
	s.Helper()
	if text, ok := s.ask(before.Instances[0], "POST", "/replicate?wait=true"); !ok {
		s.Fatalf("replicate: %s", text)
	}
	i := youngest(s.settle(len(before.Instances)+1, len(before.Instances)+1))
	at, _, _ := strings.Cut(i.Endpoint, ":")
	line := "by-" + string(i.ID)
	// This line gives the instance something to merge.
	s.Must(s.Host(), "curl", "-sS", "--fail", "--max-time", "6", "http://"+at+":8080/write?line="+line)
	s.acked = append(s.acked, line)
	return i
}
