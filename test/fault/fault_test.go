package fault

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// site is a service of keepers under load.
type site struct {
	*labtest.Pando
	t      *testing.T
	web    *labtest.Service
	keeper string
	loads  int
	acked  []string
}

// least is the number of instances between two faults.
const least = 2

func newSite(t *testing.T, o labtest.Options) *site {
	p := labtest.UpWith(t, o)
	return &site{Pando: p, t: t, keeper: install(p)}
}

// install puts the keeper where sandboxes and lab hosts find it.
func install(p *labtest.Pando) string {
	b, err := os.ReadFile(labtest.Build(p, "./test/fault/keeper"))
	if err != nil {
		p.Fatal(err)
	}
	return p.Write("keeper", string(b))
}

func (s *site) deploy() {
	s.web = s.Deploy(strings.Join([]string{
		"name: web", "command: [./keeper]", `ports: ["80:8080"]`,
		fmt.Sprintf("scale: {min: %d, max: 6}", least), "state: {log: append-log}", "",
	}, "\n"))
	s.web.AwaitInstances(least)
}

func (s *site) in(t *testing.T) *site {
	q := *s
	q.Pando, q.t = s.Pando.In(t), t
	return &q
}

// told is the client's report of its load.
type told struct {
	Answered      int
	Failed        []string
	Failing, Late time.Duration
	Acked         []string
}

// load runs the client while f runs, and returns the client's report.
func (s *site) load(f func()) (v told) {
	s.Helper()
	r := s.Start(labtest.Client, "env", "RUN="+strconv.Itoa(s.loads), s.keeper, "load", s.web.VIP)
	s.loads++
	r.AwaitText("loading")
	f()
	out := r.Stop()
	_, text, _ := strings.Cut(out.Text, "loading\n")
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		s.Fatalf("the client printed %q: %v", out.Text, err)
	}
	s.acked = append(s.acked, v.Acked...)
	return v
}

// ask makes one instance call its own API, from the host, and returns the answer. ok is false for a
// refusal or no answer.
func (s *site) ask(i pando.InstanceStatus, method, path string) (string, bool) {
	s.Helper()
	return s.askWith(i, method, path, "")
}

func (s *site) askWith(i pando.InstanceStatus, method, path, body string) (string, bool) {
	s.Helper()
	at, _, _ := strings.Cut(i.Endpoint, ":")
	q := url.Values{"method": {method}, "path": {path}, "body": {body}}
	out := s.Run(s.Host(), "curl", "-sS", "--fail-with-body", "--max-time", "6",
		"http://"+at+":8080/ask?"+q.Encode())
	return out.Text, out.Code == 0
}

// arm makes the next process at a failpoint die. With a pid, that process dies instead.
func (s *site) arm(name string, pid int) {
	s.Helper()
	if pid != 0 {
		name += ": " + strconv.Itoa(pid)
	}
	if err := os.WriteFile(s.Path(s.Host(), "/run/pando/failpoint"), []byte(name), 0o644); err != nil {
		s.Fatal(err)
	}
}

func (s *site) armed() bool {
	_, err := os.Stat(s.Path(s.Host(), "/run/pando/failpoint"))
	return err == nil
}

// program returns the process of an instance, by its number on the host.
func (s *site) program(i pando.InstanceID) int {
	s.Helper()
	for _, pid := range strings.Fields(s.Run(s.Host(), "pgrep", "-x", "keeper").Text) {
		env, err := os.ReadFile(s.Path(s.Host(), "/proc/"+pid+"/environ"))
		if err == nil &&
			slices.Contains(strings.Split(string(env), "\x00"), "PANDO_INSTANCE="+string(i)) {
			n, _ := strconv.Atoi(pid)
			return n
		}
	}
	return 0
}

// restart starts the killed daemons. A process removes its mark before it dies at a failpoint, so a
// daemon that runs now may end during the wait for its readiness.
func (s *site) restart() {
	s.Helper()
	s.Await("everything up", func() (string, bool) { return s.TryUp(s.Host()) })
}

// settle starts the killed daemons, and waits until all instances are in rotation and each has one
// program.
func (s *site) settle(least, most int) pando.ServiceStatus {
	s.Helper()
	s.restart()
	return s.web.Await("everything in rotation, once", func(st pando.ServiceStatus) bool {
		programs := len(strings.Fields(s.Run(s.Host(), "pgrep", "-x", "keeper").Text))
		return st.InRotation == len(st.Instances) && programs == st.InRotation && least <= programs &&
			programs <= most
	})
}

// leave takes an instance through halt, merge and die. It repeats them after each fault until the
// instance is gone.
func (s *site) leave(i pando.InstanceStatus) {
	s.Helper()
	s.Await(string(i.ID)+" gone", func() (string, bool) {
		s.restart()
		s.ask(i, "POST", "/halt")
		s.ask(i, "POST", "/state/push")
		text, _ := s.ask(i, "POST", "/die")
		return text, !slices.ContainsFunc(s.web.Status().Instances,
			func(o pando.InstanceStatus) bool { return o.ID == i.ID })
	})
}

// youngest returns the instance that was born last, which the test takes out.
func youngest(st pando.ServiceStatus) pando.InstanceStatus {
	return slices.MaxFunc(st.Instances,
		func(a, b pando.InstanceStatus) int { return a.Born.Compare(b.Born) })
}

// verify checks the merged state against the acknowledged lines.
func (s *site) verify() {
	s.Helper()
	st := s.settle(least, 6)
	for _, i := range st.Instances {
		s.Await("the push of "+string(i.ID),
			func() (string, bool) { return s.ask(i, "POST", "/state/push") })
	}
	last := st.Instances[0]
	s.Await("the pull of "+string(last.ID),
		func() (string, bool) { return s.ask(last, "POST", "/state/pull") })
	log, ok := s.ask(last, "GET", "/state/log")
	if !ok {
		s.Fatalf("the log cannot be read: %s", log)
	}
	times := map[string]int{}
	for line := range strings.Lines(log) {
		times[strings.TrimSpace(line)]++
	}
	lost := 0
	for _, line := range s.acked {
		if times[line] != 1 {
			if lost++; lost < 10 {
				s.t.Errorf("line %s was acknowledged and is in the log %d times", line, times[line])
			}
		}
	}
	if len(s.acked) == 0 {
		s.t.Error("not one commit was acknowledged: nothing was tested")
	}
	for line, n := range times {
		if n > 1 {
			s.t.Errorf("line %s is in the log %d times", line, n)
		}
	}
	s.t.Logf("%d commits were acknowledged, the log has %d lines", len(s.acked), len(times))
}

// nothingLeft removes everything and checks for leftovers.
func (s *site) nothingLeft() {
	s.Helper()
	s.Pando.Pando("rm", "web", "--wait")
	if got := strings.Fields(s.Run(s.Host(), "pgrep", "-x", "keeper").Text); len(got) > 0 {
		s.t.Errorf("processes %v are left of a removed service", got)
	}
	s.Down(s.Host(), "--purge")
	if left := s.Left(s.Host()); len(left) > 0 {
		s.t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(filepath.Join(s.Data(s.Host()), "store")); err == nil {
		s.t.Error("the store is left behind")
	}
}
