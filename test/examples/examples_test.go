// Package examples deploys the examples as a user does, on virtual hosts, loads them, and counts
// the results.
package examples

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pando.run/pando/demo/load"
	"pando.run/pando/lab/labtest"
)

// example is a service that grows under load and shrinks after it.
type example struct {
	*labtest.Pando
	*labtest.Service
}

func deploy(t *testing.T, name string) example {
	t.Helper()
	t.Parallel()
	path, err := filepath.Abs(filepath.Join("../../examples", name, "pando.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p := labtest.Up(t)
	return example{p, p.DeployFile(path)}
}

// grow offers a ramp and waits for more than one instance. It calls during, then waits until the
// ramp has passed and one instance is left. It returns the number of answered requests; every
// request must be answered.
func (e example) grow(schedule string, during func(), flags ...string) int {
	e.Pando.Helper()
	e.AwaitPage(labtest.Client)
	argv := append([]string{labtest.Build(e.Pando, "./demo"), "load", "--timeout", "60s", "--address",
		e.VIP + ":80", "--schedule", schedule}, flags...)
	ramp := e.Start(labtest.Client, argv...)
	e.Pando.Await("more than one instance in rotation", func() (string, bool) {
		return e.Why() + ramp.Text(), e.Status().InRotation > 1
	})
	during()
	out := ramp.Wait()
	answered, offered, broken := 0, 0, 0
	for line := range strings.Lines(out.Text) {
		var r load.Report
		if json.Unmarshal([]byte(line), &r) == nil {
			answered, offered, broken = answered+r.Answered, offered+r.Offered, broken+r.Broken
		}
	}
	if out.Code != 0 || answered != offered || broken != 0 || offered == 0 {
		e.Errorf("of %d requests %d were answered, %d connections broke:\n%s\n%s",
			offered, answered, broken, out.Text, e.Why())
	}
	e.AwaitInstances(1)
	return answered
}

// lines counts the lines of the access log and the requests counted, in a clone of the service's
// state.
func (e example) lines() (lines, requests int) {
	e.Pando.Helper()
	dir := filepath.Join(e.Dir, "clone")
	e.Must(e.Host(), "rm", "-rf", dir)
	e.Must(e.Host(), "git", "clone", "-q", "http://127.0.0.1:7400/state/"+e.Name+".git", dir)
	e.Must(e.Host(), "git", "-C", dir, "fsck", "--strict")
	seen := map[string]int{}
	for line := range strings.Lines(e.Must(e.Host(), "sh", "-c",
		"cd "+dir+"/access.log && find . -type f | sort | xargs cat")) {
		seen[line]++
		lines++
	}
	requests, err := strconv.Atoi(strings.TrimSpace(e.Must(e.Host(), "cat", dir+"/requests")))
	if err != nil {
		e.Fatal(err)
	}
	return lines, requests
}

// conserved waits until every answered request is in the merged state: as one line and one in the
// counter. extra counts the requests of the test itself.
func (e example) conserved(answered, extra int) {
	e.Pando.Helper()
	e.Pando.Await("a state that has every request once", func() (string, bool) {
		lines, requests := e.lines()
		return strconv.Itoa(lines) + " lines and " + strconv.Itoa(requests) +
				" counted of " + strconv.Itoa(answered+extra) + " answered",
			lines == answered+extra && requests == answered+extra
	})
}

func TestWebsitePython(t *testing.T) {
	e := deploy(t, "website-python")
	// The agent dies and comes back, and each request still counts once.
	e.conserved(e.grow("40,1s:300,5s:300,1s:20,3s:20", func() {
		e.KillAgent(e.Host())
		e.Up(e.Host())
	}, "--connections", "16"), 1)
}

func TestWebsiteShell(t *testing.T) {
	e := deploy(t, "website-shell")
	e.conserved(e.grow("20,1s:90,6s:90,1s:10,3s:10", func() {}, "--connections", "16"), 1)
}

func TestNginx(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/nginx"); err != nil {
		t.Skip("nginx is not installed: apt-get install nginx-light")
	}
	e := deploy(t, "nginx")
	e.grow("30,1s:200,5s:200,1s:20,5s:20", func() {}, "--connections", "16", "--fresh", "0.5")
}
