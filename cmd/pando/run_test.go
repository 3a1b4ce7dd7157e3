package main

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

const quietWeb = `name: web
command: [sh, -c, "echo kept > /data/note; exec sleep 1000"]
environment: {GREETING: hello}
health: {ready: started}
volumes: ["data:/data"]
`

// A run has the spec of its service, and reads its volumes beside the instance that has them. It is
// never in rotation, and leaves nothing.
func TestACommandRunsBesideAService(t *testing.T) {
	t.Parallel()
	o := begin(t)
	o.says(0, "deploy --wait "+o.Write("web.yaml", quietWeb))
	o.Await("the note", func() (string, bool) {
		got := invoke(o.socket, "exec", "web", "--", "cat", "/data/note")
		return got.out + got.err, got.out == "kept\n"
	})
	before := shows[pando.ServiceStatus](o, "status web")
	got := invoke(o.socket, "run", "web", "--", "sh", "-c",
		"echo $GREETING $PANDO_RUN; cat /data/note; touch /data/other || exit 7")
	if got.code != 7 || got.out != "hello 1\nkept\n" {
		t.Errorf("code %d\n%s%s", got.code, got.out, got.err)
	}
	if got := invoke(o.socket, "run", "web", "--", "true"); got.code != 0 {
		t.Errorf("code %d: %s%s", got.code, got.out, got.err)
	}
	o.Await("the ends of the runs", func() (string, bool) {
		text := o.says(0, "runs web")
		return text, strings.Contains(text, "failed") && strings.Contains(text, "exit code 7") &&
			strings.Contains(text, "succeeded")
	})
	o.has(o.says(0, "why web"), "run 1 begins: sh -c", "run 1 failed: exit code 7")
	o.Await("the instances of the runs to go", func() (string, bool) {
		text := o.says(0, "ps")
		return text, !strings.Contains(text, "run ")
	})
	after := shows[pando.ServiceStatus](o, "status web")
	if len(after.Instances) != 1 || after.Instances[0].ID != before.Instances[0].ID ||
		after.InRotation != 1 || after.Book.Active() != 0 {
		t.Errorf("the service changed: %+v", after)
	}
	o.has(o.says(5, "run web"), "no job", "pando run web -- COMMAND")
	o.has(o.says(5, "runs web --end 2"), "succeeded")
	if got := invoke(o.socket, "run", "web", "--", "/no/such/program"); got.code == 0 ||
		!strings.Contains(got.err, "/no/such/program") {
		t.Errorf("code %d: %s%s", got.code, got.out, got.err)
	}
}

// A job runs at its deploy, is tried again after a failure, and keeps the end of each run.
func TestAJobRunsToItsEnd(t *testing.T) {
	t.Parallel()
	o := begin(t)
	dir := t.TempDir()
	job := "name: tidy\nkind: job\nuser: root\nuserns_mode: host\nfolders: [\"" + dir + ":rw\"]\n" +
		"command: [sh, -c, \"echo part >> " + dir + "/log; test $(wc -l < " + dir + "/log) -gt 2\"]\n" +
		"job: {parallel: 2, retries: 2, deadline: 1m}\n"
	file := o.Write("tidy.yaml", job)
	o.has(o.says(0, "deploy --wait "+file), "completed", "2 of 2 ended with 0")
	st := shows[pando.ServiceStatus](o, "status tidy")
	if r, ok := st.Book.Newest(); !ok || r.State != pando.RunSucceeded || r.Done != 2 ||
		r.Failed < 1 {
		t.Errorf("%+v", st.Book)
	}
	o.has(o.says(0, "run tidy"), "run 2 of tidy  succeeded")
	o.has(o.says(0, "deploy --dry-run "+file), "would change nothing")
	broken := o.Write("tidy.yaml", strings.Replace(job, "-gt 2", "-gt 99", 1))
	o.has(o.says(7, "deploy --wait "+broken), "exited with 1")
	o.has(o.says(0, "status tidy"), "failed (run 3 failed: ", "2 may be tried again")
	o.has(o.says(0, "runs tidy"), "failed", "0 of 2")
	o.says(0, "rm tidy --wait")
}

// The caller of an attached run dies: the run ends, and its instance goes.
func TestARunEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	p.Pando("deploy", p.Write("web.yaml", quietWeb), "--wait")
	caller := p.Start(p.Host(), p.Bin, "run", "web", "--", "sh", "-c", "echo there; sleep 1000")
	caller.AwaitText("there")
	caller.Stop()
	p.Await("the run to end", func() (string, bool) {
		text := p.Pando("status", "web")
		return text, strings.Contains(text, "1  ") && !strings.Contains(text, "running")
	})
}
