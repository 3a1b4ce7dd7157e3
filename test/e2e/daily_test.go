package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// TestADayOnTwoHosts looks after a service with its home on another host than the server's.
func TestADayOnTwoHosts(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true, Flags: []string{"--pool", "1"}})
	var away *labtest.Service
	for _, name := range []string{"web", "shop"} { // each host is the home of one
		s := p.Deploy(labtest.Echo(name, "scale: {min: 1, max: 4}"))
		if homeOf(t, s.AwaitInstances(1)) == p.Hosts[1] {
			away = s
		}
	}
	if away == nil {
		t.Fatal("no service has its home on the second host")
	}
	t.Run("revisions", func(t *testing.T) { revisionsOfADay(p.In(t), away.In(p.In(t))) })
	t.Run("stats", func(t *testing.T) { statsOfADay(p.In(t), away.In(p.In(t))) })
	t.Run("exec", func(t *testing.T) { execOfADay(p.In(t), away.In(p.In(t))) })
	t.Run("copy", func(t *testing.T) { copyOfADay(p.In(t), away.In(p.In(t))) })
	t.Run("forward", func(t *testing.T) { forwardOfADay(p.In(t), away.In(p.In(t))) })
	t.Run("logs", func(t *testing.T) { logsOfADay(p.In(t), away.In(p.In(t))) })
}

func revisionsOfADay(p *labtest.Pando, s *labtest.Service) {
	s.Update(labtest.Echo(s.Name, "scale: {min: 1, max: 4}", "environment: {TEXT: two}"))
	p.Pando("rollback", s.Name, "--wait", "--reason", "it greets")
	has(p, p.Pando("history", s.Name), "environment.TEXT", "back to 1")
	has(p, p.Pando("diff", s.Name, "1", "2"), "+  TEXT: two")
	has(p, s.Why(), "revision 3, with the spec of revision 1: it greets")
	if got := s.Get(p.Host(), "/"); strings.HasSuffix(got, " two") {
		p.Errorf("after the rollback it answers %q", got)
	}
	member := p.Run(p.Hosts[1], p.Bin, "rollback", s.Name)
	if member.Code != 10 {
		p.Errorf("a rollback on a member: code %d: %s", member.Code, member.Text)
	}
	has(p, p.Must(p.Hosts[1], p.Bin, "history", s.Name), "back to 1")
	p.PandoFails(5, "rollback", s.Name, "--to", "3")
}

func statsOfADay(p *labtest.Pando, s *labtest.Service) {
	id := string(s.AwaitInstances(1).Instances[0].ID)
	held := s.Hold(p.Host())
	p.Await("a connection in stats", func() (string, bool) {
		var all []struct {
			Instance    string
			Host        string
			Connections int
			PIDs        int
			CPUs        *float64 `json:"cpus"`
			Memory      int64    `json:"memory_bytes"`
		}
		text := p.Pando("stats", s.Name, "-o", "json")
		err := json.Unmarshal([]byte(text), &all)
		return text, err == nil && len(all) == 1 && all[0].Instance == id &&
			all[0].Host == p.Hosts[1] && all[0].Connections == 1 && all[0].PIDs > 0 &&
			all[0].CPUs != nil && all[0].Memory > 0
	})
	held.Stop()
	for _, host := range p.Hosts {
		has(p, p.Must(host, p.Bin, "stats"), id, "web-", "shop-", p.Hosts[0], p.Hosts[1])
	}
	p.PandoFails(4, "stats", "none")
}

func execOfADay(p *labtest.Pando, s *labtest.Service) {
	id := string(s.AwaitInstances(1).Instances[0].ID)
	on := func(script string) labtest.Output {
		return p.Run(p.Host(), "bash", "-c", strings.ReplaceAll(script, "pando", p.Bin))
	}
	for script, want := range map[string]string{
		"pando exec " + s.Name + " -- hostname":                                     id,
		"echo hi | pando exec -i " + s.Name + "/" + id + " -- cat":                  "hi",
		"pando exec " + s.Name + " -- sh -c 'cat; echo end'":                        "end",
		"pando exec " + s.Name + " -- sh -c 'echo bad >&2' 2>&1 >/dev/null":         "bad",
		"seq 200000 | pando exec -i " + s.Name + " -- cat | cksum":                  "",
		"(yes || true) | pando exec -i " + s.Name + " -- head -1":                   "y",
		"pando exec " + s.Name + " -- sh -c 'echo $PANDO_INSTANCE $(id -u)'":        id + " 2",
		"script -qec 'pando exec -it " + s.Name + " -- sh -c \"tty; stty size\"' x": "/dev/pts/",
	} {
		out := on("set -o pipefail; cd " + p.Dir + "; " + script)
		if out.Code != 0 || !strings.Contains(out.Text, want) {
			p.Errorf("%s: code %d, want %q\n%s", script, out.Code, want, out.Text)
		}
	}
	for script, code := range map[string]int{
		"exit 7": 7, "kill -9 $$": 137, "mount -t tmpfs tmpfs /tmp": 32, "nosuch": 127,
	} {
		out := p.Run(p.Host(), p.Bin, "exec", s.Name, "--", "sh", "-c", script)
		if out.Code != code && !(code == 32 && out.Code != 0) {
			p.Errorf("%s: code %d, want %d: %s", script, out.Code, code, out.Text)
		}
	}
	has(p, p.PandoFails(3, "exec", s.Name, "--", "no-such-program"), "no program")
	p.PandoFails(4, "exec", s.Name+"/"+s.Name+"-none", "--", "true")
	p.PandoFails(4, "exec", "none", "--", "true")
	if out := p.Run(p.Hosts[1], p.Bin, "exec", s.Name, "--", "true"); out.Code != 10 {
		p.Errorf("exec on a member: code %d: %s", out.Code, out.Text)
	}
	long := p.Start(p.Host(), p.Bin, "exec", s.Name, "--", "sh", "-c",
		"trap 'echo caught; exit 9' TERM; echo begun; while :; do sleep 0.1; done")
	long.AwaitText("begun")
	if out := long.Stop(); out.Code != 9 || !strings.Contains(out.Text, "caught") {
		p.Errorf("a signal: code %d: %s", out.Code, out.Text)
	}
	p.Await("the sessions in why", func() (string, bool) {
		why := s.Why()
		return why, strings.Contains(why, "exit code 9 after") &&
			strings.Contains(why, `sh -c "exit 7": exit code 7 after`)
	})
	execHasTheWallsOfTheProgram(p, s)
	execEndsWithItsCaller(p, s)
}

// execHasTheWallsOfTheProgram compares a command with the program of its instance.
func execHasTheWallsOfTheProgram(p *labtest.Pando, s *labtest.Service) {
	const walls = `for at in $(pgrep -o -x echo) self; do cat /proc/$at/cgroup; ` +
		`grep -E "^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)" /proc/$at/status; ` +
		`for ns in mnt pid net ipc uts user; do readlink /proc/$at/ns/$ns; done; echo =; done`
	text := p.Pando("exec", s.Name, "--", "sh", "-c", walls)
	program, command, _ := strings.Cut(text, "=\n")
	if command = strings.TrimSuffix(command, "=\n"); program == "" || program != command ||
		!strings.Contains(program, "NoNewPrivs:\t1") {
		p.Errorf("the program has\n%sand the command\n%s", program, command)
	}
}

// execEndsWithItsCaller checks that no command outlives its client, its agent or its instance.
func execEndsWithItsCaller(p *labtest.Pando, s *labtest.Service) {
	begin := func(mark string) *labtest.Process {
		r := p.Start(p.Host(), p.Bin, "exec", s.Name, "--", "sh", "-c", "echo begun; exec sleep "+mark)
		r.AwaitText("begun")
		return r
	}
	ended := func(mark string) {
		p.Helper()
		p.Await("the end of sleep "+mark, func() (string, bool) {
			out := p.Run(p.Hosts[1], "pgrep", "-f", "^sleep "+mark)
			return out.Text, out.Code == 1
		})
	}
	for mark, end := range map[string]func(*labtest.Process){
		"77701": func(r *labtest.Process) {
			p.Must(p.Host(), "pkill", "-9", "-f", "^"+p.Bin+" exec.*77701")
		},
		"77702": func(*labtest.Process) { p.KillAgent(p.Hosts[1]); p.Up(p.Hosts[1]) },
		"77703": func(*labtest.Process) { s.Kill(s.AwaitInstances(1).Instances[0].ID) },
	} {
		r := begin(mark)
		end(r)
		ended(mark)
		if out := r.Wait(); out.Code == 0 {
			p.Errorf("%s: the client ended well: %s", mark, out.Text)
		}
		s.AwaitInstances(1)
	}
}

func logsOfADay(p *labtest.Pando, s *labtest.Service) {
	first := s.AwaitInstances(1).Instances[0].ID
	follow := p.Start(p.Host(), p.Bin, "logs", s.Name, "-f", "-t")
	follow.AwaitText("hello from " + string(first))
	p.Pando("scale", s.Name, "2", "--wait")
	st := s.AwaitInstances(2)
	for _, i := range st.Instances {
		follow.AwaitText("hello from " + string(i.ID))
	}
	for _, host := range p.Hosts {
		has(p, p.Must(host, p.Bin, "logs", s.Name, "--since", "1h", "--grep", "^hello"),
			string(st.Instances[0].ID)+"  hello", string(st.Instances[1].ID)+"  hello")
	}
	has(p, p.Pando("logs", s.Name, "--grep", "goodbye"), "no line of "+s.Name+" is as asked for")
	if out := follow.Stop(); out.Code != 130 ||
		strings.Count(out.Text, "Z  hello from "+string(first)) != 1 {
		p.Errorf("logs -f: code %d\n%s", out.Code, out.Text)
	}
	p.Pando("scale", s.Name, "auto")
	s.AwaitInstances(1)
	s.Kill(s.Status().Instances[0].ID)
	s.Await("another instance", func(st pando.ServiceStatus) bool {
		return st.InRotation == 1 && st.Instances[0].ID != first
	})
	has(p, p.Pando("logs", s.Name, "--instance", string(first)), "hello from "+string(first))
}

// Files and folders travel to an instance of another host and back, with the rights of its program.
func copyOfADay(p *labtest.Pando, s *labtest.Service) {
	from, back := filepath.Join(p.Dir, "to copy"), filepath.Join(p.Dir, "copied")
	for name, size := range map[string]int{"a": 1, "sub/b": 3 << 20, "sub/-c\n": 5} {
		file := filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			p.Fatal(err)
		}
		if err := os.WriteFile(file, bytes.Repeat([]byte("x"), size), 0o644); err != nil {
			p.Fatal(err)
		}
	}
	p.Pando("cp", from, s.Name+":/tmp/new")
	p.Pando("cp", from, s.Name+":/tmp") // a folder that is there
	has(p, p.Pando("exec", s.Name, "--", "ls", "/tmp", "/tmp/to copy/sub"), "new", "to copy", "b")
	p.Pando("cp", s.Name+":/tmp/to copy", back)
	p.Must(p.Host(), "diff", "-r", from, back)
	one := filepath.Join(p.Dir, "one")
	p.Pando("cp", s.Name+":/tmp/new/a", one)
	if text, err := os.ReadFile(one); err != nil || string(text) != "x" {
		p.Errorf("one file: %q, %v", text, err)
	}
	has(p, p.PandoFails(6, "cp", s.Name+":/tmp/new/sub/b", one), "one is there", "--force")
	has(p, p.PandoFails(6, "cp", one, s.Name+":/tmp/new/a"), "/tmp/new/a is there", "--force")
	p.Pando("cp", "--force", s.Name+":/tmp/new/a", one)
	p.Pando("exec", s.Name, "--", "ln", "-s", "/etc/passwd", "/tmp/new/far")
	out := p.Run(p.Host(), append([]string{p.Bin}, "cp", s.Name+":/tmp/new", back+"2")...)
	has(p, out.Text, "left out", "far", "out of the copy")
	if _, err := os.Lstat(filepath.Join(back+"2", "far")); out.Code != 0 || err == nil {
		p.Errorf("a link out of the copy: code %d, %v", out.Code, err)
	}
	has(p, p.PandoFails(5, "cp", s.Name+":/tmp/none", back), "No such file")
	has(p, p.PandoFails(5, "cp", one, s.Name+":/etc/mine"), "mine: Cannot open")
	p.PandoFails(4, "cp", "none:/tmp/a", back+"3")
	p.PandoFails(2, "cp", one, back)
	has(p, s.Why(), "tar -C /tmp -c -f - -- new")
}

// A port of an instance on another host is reached from the server's host, published or not.
func forwardOfADay(p *labtest.Pando, s *labtest.Service) {
	f := p.Start(p.Host(), p.Bin, "port-forward", s.Name, "18080:8080")
	f.AwaitText("127.0.0.1:18080 leads to port 8080")
	url := "http://127.0.0.1:18080"
	out := p.Run(p.Host(), "curl", "-sS", "-o", "/dev/null", "-w", "%{size_download}",
		url+"/size?bytes=3000000")
	if out.Text != "3000000" {
		p.Errorf("3,000,000 bytes by the port: %d %s", out.Code, out.Text)
	}
	if got := p.Run(p.Host(), "curl", "-sS", url+"/from"); !strings.HasPrefix(got.Text, "127.0.0.1:") {
		p.Errorf("the program sees %q, want a local client", got.Text)
	}
	closed := p.Start(p.Host(), p.Bin, "port-forward", s.Name, "18081:9")
	closed.AwaitText("leads to port 9")
	p.Run(p.Host(), "curl", "-sS", "--max-time", "5", "http://127.0.0.1:18081/")
	closed.AwaitText("nothing takes connections at port 9")
	has(p, p.PandoFails(6, "port-forward", s.Name, "18080:8080"), "in use")
	p.PandoFails(4, "port-forward", "none", "0:8080")
	p.PandoFails(2, "port-forward", s.Name, "0")
	for _, one := range []*labtest.Process{f, closed} {
		if out := one.Stop(); out.Code != 0 {
			p.Errorf("at its end: code %d: %s", out.Code, out.Text)
		}
	}
	has(p, s.Why(), "a connection to port 8080: exit code 0")
}
