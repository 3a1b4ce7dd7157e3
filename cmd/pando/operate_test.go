package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// terminal represents a person at a terminal of a host that runs Pando.
type terminal struct {
	*labtest.Pando
	socket string
}

func begin(t *testing.T) terminal {
	p := labtest.Up(t)
	return terminal{p, p.Path(p.Host(), "/run/pando/api.sock")}
}

// says runs a command line, checks its exit code and returns its output.
func (o terminal) says(code int, line string) string {
	o.Helper()
	got := invoke(o.socket, strings.Fields(line)...)
	if got.code != code {
		o.Fatalf("pando %s: code %d, want %d\n%s%s", line, got.code, code, got.out, got.err)
	}
	return got.out + got.err
}

// shows runs a command line with -o json and decodes the output.
func shows[T any](o terminal, line string) (v T) {
	o.Helper()
	text := o.says(0, line+" -o json")
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		o.Fatalf("pando %s -o json: %v\n%s", line, err, text)
	}
	return v
}

func (o terminal) has(text string, wants ...string) {
	o.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			o.Errorf("want %q in\n%s", want, text)
		}
	}
}

func TestAnOperatorsDay(t *testing.T) {
	t.Parallel()
	o := begin(t)
	o.has(o.says(0, "status"), "no services yet: pando deploy")
	o.has(o.says(0, "ps"), "no instances")
	o.WithEcho()
	file := o.Write("web.yaml", labtest.Echo("web", "scale: {min: 1, max: 4}"))
	o.has(o.says(0, "deploy --dry-run "+file), "web is new: a deploy would start 1")
	o.has(o.says(0, "deploy --wait "+file), "web  revision 1  serving (1 in rotation)  VIP 10.127.")
	o.has(o.says(0, "deploy --dry-run "+file), "a deploy would change nothing")

	st := shows[pando.ServiceStatus](o, "status web")
	if st.VIP == "" || st.Phase != pando.ServiceServing || len(st.Instances) != 1 {
		t.Fatalf("%+v", st)
	}
	if i := st.Instances[0]; i.Endpoint == "" || i.Host != pando.HostName(o.Host()) ||
		i.Phase != pando.PhaseInRotation || i.Revision != 1 || i.Reason == "" {
		t.Errorf("%+v", i)
	}
	id := string(st.Instances[0].ID)
	o.has(o.says(0, "ps"), "INSTANCE", id, "in rotation")
	o.has(o.says(0, "status web"), st.VIP, "web.pando", "80/tcp,7/udp", "budget 1 to 4", id)
	o.has(o.says(0, "status"), "1 of 1 to 4")
	o.has(o.says(0, "why web"), "deploy", "revision 1", "replicate", "control → "+id, "granted",
		"in rotation")
	o.countsDrops(st.VIP)
	o.says(0, "logs web --lines 5")
	o.has(o.says(4, "logs web --instance web-none"), "instance web-none: not found", "`pando why web`")
	o.has(o.says(4, "logs web --instance ../../x"), "not found")
	o.has(o.says(0, "__complete status we"), "web\tserving")
	o.has(o.says(0, "spec show web"), "name: web", `ready: "tcp 8080"`)

	list := o.Start(o.Host(), o.Bin, "ps", "--watch")
	list.AwaitText(id)
	watcher := o.Start(o.Host(), o.Bin, "watch", "web")
	watcher.AwaitText("follow") // the watcher has connected.
	o.has(o.says(0, "scale web 2 --for 10m --wait"), "serving (2 in rotation)")
	o.has(o.says(0, "status web"), "pinned", "at 2 for another ", "by operator")
	o.has(o.says(0, "scale web 5"), "beyond the budget of 1 to 4", "scale web auto")
	o.says(0, "scale web auto")
	watcher.AwaitText("pin by operator")
	watcher.AwaitText("unpin by operator")
	if out := watcher.Stop(); out.Code != 130 || strings.Contains(out.Text, "pando:") ||
		!strings.Contains(out.Text, "decision") {
		t.Errorf("watch: code %d\n%s", out.Code, out.Text)
	}
	if out := list.Stop(); out.Code != 130 || strings.Contains(out.Text, "pando:") ||
		strings.Count(out.Text, "INSTANCE") < 2 {
		t.Errorf("ps --watch: code %d\n%s", out.Code, out.Text)
	}

	o.Write("web.yaml", labtest.Echo("web", "scale: {min: 1, max: 4}", "environment: {LOG: debug}"))
	o.has(o.says(0, "deploy --dry-run "+file), "is at revision 1: a deploy would replace its",
		"+environment:", "LOG: debug")
	o.has(o.says(0, "deploy --wait "+file), "revision 2  serving")
	o.has(o.says(0, "rm web --wait"), "web is gone")
	o.has(o.says(4, "status web"), "service web: not found")

	for _, line := range []string{"ps", "status", "hosts"} {
		shows[[]map[string]any](o, line)
	}
	if all := shows[[]map[string]any](o, "lab --dir "+o.Dir+"/lab ls"); len(all) != 2 {
		t.Errorf("the lab has %v", all)
	}
}

// countsDrops sends a packet to a port that is not published, and finds it in the counters.
func (o terminal) countsDrops(vip string) {
	o.Helper()
	all := o.says(0, "hosts")
	o.has(all, o.Host(), "GiB")
	if strings.Contains(all, "spoofed") {
		o.Errorf("no packet was forged:\n%s", all)
	}
	if out := o.Run(labtest.Client, "curl", "-sS", "http://"+vip+":81/"); out.Code != 7 {
		o.Errorf("a port that is not published: code %d: %s", out.Code, out.Text)
	}
	o.has(o.says(0, "hosts"), o.Host()+" dropped ", "1 no_service",
		"the senders of 1 received an answer")
	o.has(o.Must(o.Host(), "curl", "-sS", "http://127.0.0.1:7400/metrics"),
		`pando_dropped_packets_total{host="`+o.Host()+`",reason="no_service"} 1`,
		`pando_answered_drops_total{host="`+o.Host()+`"} 1`)
	o.has(o.Must(o.Host(), "curl", "-sS", "--fail", "http://127.0.0.1:7400/metrics/host"),
		`pando_agent_info{host="`+o.Host()+`",`,
		`pando_agent_dropped_packets_total{reason="no_service"} 1`)
}

func TestWrongTurnsNameTheCauseAndTheNextStep(t *testing.T) {
	t.Parallel()
	o := begin(t)
	deploy := func(name, spec string) string {
		return o.says(7, "deploy --wait --timeout 20s "+o.Write(name+".yaml", "name: "+name+"\n"+spec))
	}
	o.has(deploy("gone", "command: ./no-such-program\n"), "there is no program", "no-such-program",
		"check `command`", "`pando why gone`")
	quits := deploy("quits",
		"command: [sh, -c, 'for i in $(seq 30); do echo line $i; done; exit 3']\n")
	o.has(quits, "it exited with 3", "| line 11\n", "| line 30\n")
	if strings.Contains(quits, "| line 10\n") {
		t.Errorf("more than the last 20 lines:\n%s", quits)
	}
	o.has(o.says(0, "why quits"), "failed", "it exited with 3", "| line 30")
	unready := "command: [sh, -c, 'echo soon; exec sleep 1000']\nports: ['80:8080']\n" +
		"health: {ready: http GET /ok, ready_within: 1s}\n"
	deploy("never", unready)
	o.has(o.says(0, "deploy --wait "+o.Write("never.yaml",
		"name: never\ncommand: [sleep, '1000']\nhealth: {ready: exec true}\n")), "revision 2  serving")
	o.says(0, "rm never --wait")
	never := deploy("never", unready)
	o.deploysSeveral()
	// A new instance may be running just now.
	o.Await("a service without an instance in ps", func() (string, bool) {
		text := o.says(0, "ps")
		return text, strings.Contains(text, "failures since the deploy, the newest: it exited with 1")
	})
	loud := deploy("loud", "command: [sh, -c, 'echo last words; exit 3']\n")
	o.has(loud, "last words")
	// A new instance may be running just now.
	o.Await("the log of a dead instance", func() (string, bool) {
		text := o.says(0, "logs loud")
		return text, strings.Contains(text, "it is gone; no instance of loud lives") &&
			strings.Contains(text, "  last words\n")
	})
	up := []string{o.Bin, "up", "--data-dir", o.Data(o.Host()), "--host", o.Host(), "--pool"}
	if again := o.Run(o.Host(), append(up, "3")...); again.Code != 0 {
		t.Errorf("up as it is: code %d: %s", again.Code, again.Text)
	}
	other := o.Run(o.Host(), append(up, "2")...)
	if other.Code != 2 ||
		!strings.Contains(other.Text, "already up, where --pool is 3 and not 2: `pando down` first") {
		t.Errorf("up with another pool: code %d: %s", other.Code, other.Text)
	}
	o.has(never, "not ready within 1s", "http GET :8080/ok", "connection refused", "| soon")
	o.has(o.says(0, "why never"), "failed", "connection refused", "| soon")
	o.has(o.says(0, "status never"), "deploying", "problem")

	for _, line := range []string{"status nevr", "why nevr", "logs nevr", "scale nevr 2", "rm nevr",
		"watch nevr", "state log nevr", "spec show nevr"} {
		o.has(o.says(4, line), "service nevr: not found; did you mean never?")
	}
	o.has(o.says(4, "status zebra"), "`pando status` lists the services")
	o.has(o.says(3, "status Web!"), `service name "Web!"`)
	o.has(o.says(3, "scale never 5000"), "4096")
	o.Must(o.Host(), "cp", o.Bin, o.Dir+"/pando")
	nobody := o.Run(o.Host(), "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
		o.Dir+"/pando", "ps")
	if nobody.Code != 10 ||
		!strings.Contains(nobody.Text, "you may not open /run/pando/api.sock: be root, or in its group") {
		t.Errorf("a stranger: code %d: %s", nobody.Code, nobody.Text)
	}
	for _, name := range []string{"sits", "waits", "loud", "gone", "quits", "never"} {
		o.has(o.says(0, "rm "+name+" --wait"), name+" is gone")
	}
}

// deploysSeveral deploys a file of three services, one of which fails.
func (o terminal) deploysSeveral() {
	o.Helper()
	several := o.Write("several.yaml", "name: sits\ncommand: [sleep, '1000']\n"+
		"health: {ready: exec true}\n---\nname: quits\ncommand: ['false']\n"+
		"---\nname: waits\ncommand: [sleep, '1000']\nuser: '0'\nhealth: {ready: exec true}\n")
	o.has(o.says(7, "deploy --wait --timeout 20s "+several), "sits  revision 1  serving",
		"quits  failed: revision 2 of quits", "waits  revision 1  serving",
		"1 of 3 services failed (quits)", "warning: waits: it runs as root")
	var all []pando.ServiceStatus
	text := invoke(o.socket, "deploy", several, "-o", "json").out
	if json.Unmarshal([]byte(text), &all) != nil || len(all) != 3 || all[2].Name != "waits" {
		o.Errorf("the answer for a file of three services is\n%s", text)
	}
	o.has(o.says(0, "logs sits"), "sits has printed nothing yet")
}

func TestUpSaysWhyItDoesNotComeUp(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Idle: true})
	up := []string{p.Bin, "up", "--data-dir", p.Data(p.Host()), "--host", p.Host()}
	p.Run(p.Host(), "ip", "address", "add", "10.128.9.9/32", "dev", "lo")
	out := p.Run(p.Host(), up...)
	if out.Code != 3 || !strings.Contains(out.Text, "lo has the address 10.128.9.9") ||
		!strings.Contains(out.Text, "`pando up --vips 10.127.0.0/16 --instances 10.192.0.0/10`") {
		t.Errorf("up in a network that has the ranges: code %d\n%s", out.Code, out.Text)
	}
	p.Run(p.Host(), "ip", "address", "delete", "10.128.9.9/32", "dev", "lo")
	busy := p.Start(p.Host(), "python3", "-u", "-m", "http.server", "7400", "--bind", "127.0.0.1")
	busy.AwaitText("Serving HTTP")
	out = p.Run(p.Host(), up...)
	if out.Code != 7 || !strings.Contains(out.Text, "address already in use") ||
		!strings.Contains(out.Text, "--http") || strings.Contains(out.Text, "from=etcd") {
		t.Errorf("code %d\n%s", out.Code, out.Text)
	}
	busy.Stop()
	out = p.Run(p.Host(), append(up, "--listen", "300.0.0.1")...)
	if out.Code != 7 || !strings.Contains(out.Text, "choose another address with --listen") ||
		strings.Contains(out.Text, "from=etcd") {
		t.Errorf("code %d\n%s", out.Code, out.Text)
	}
	var is struct{ Host, API string }
	if out = p.Run(p.Host(), append(up, "-o", "json")...); out.Code != 0 ||
		json.Unmarshal([]byte(out.Text), &is) != nil || is.Host != p.Host() || is.API == "" {
		t.Errorf("code %d\n%s", out.Code, out.Text)
	}
	for _, other := range [][]string{{"--data-dir", p.Dir + "/elsewhere", "--host", p.Host()},
		{"--data-dir", p.Data(p.Host()), "--host", "another"}} {
		out = p.Run(p.Host(), append([]string{p.Bin, "up"}, other...)...)
		if out.Code != 6 || !strings.Contains(out.Text, "runs here as host "+p.Host()) ||
			!strings.Contains(out.Text, "pando down --data-dir "+p.Data(p.Host())) {
			t.Errorf("up %v over another: code %d\n%s", other, out.Code, out.Text)
		}
	}
	var down struct {
		Host   string
		Purged bool
	}
	out = p.Run(p.Host(), p.Bin, "down", "--data-dir", p.Data(p.Host()), "--host", p.Host(), "-o",
		"json")
	if out.Code != 0 || json.Unmarshal([]byte(out.Text), &down) != nil || down.Purged {
		t.Errorf("code %d\n%s", out.Code, out.Text)
	}
}

func TestWrongPlacesAndDamagedFilesAreNamed(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	data := p.Data(p.Host())
	up := func(code int, want string, flags ...string) {
		t.Helper()
		out := p.Run(p.Host(), append([]string{p.Bin, "up", "--host", p.Host()}, flags...)...)
		if out.Code != code || !strings.Contains(out.Text, want) {
			t.Errorf("up %v: code %d, want %d and %q\n%s", flags, out.Code, code, want, out.Text)
		}
	}
	down := func() { p.Must(p.Host(), p.Bin, "down", "--data-dir", data, "--host", p.Host()) }
	down()
	writeFile(t, p.Dir+"/file", "")
	up(3, "is not a folder; choose another with --data-dir", "--data-dir", p.Dir+"/file")
	up(3, "there is no interface nope0 for --uplink; this host has ", "--data-dir", data, "--uplink",
		"nope0")
	small := p.Dir + "/small"
	p.Must(p.Host(), "mkdir", small)
	p.Must(p.Host(), "mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", small)
	up(9, "the store needs 128: make room", "--data-dir", small+"/data")
	p.Must(p.Host(), "umount", small)

	for _, path := range []string{"state.db", "store/member/snap/db"} {
		file := data + "/" + path
		p.Must(p.Host(), "cp", file, file+".good")
		p.Must(p.Host(), "dd", "if=/dev/urandom", "of="+file, "bs=4096", "count=4", "conv=notrunc")
		up(7, "or forget everything with `pando down --purge`", "--data-dir", data)
		down()
		p.Must(p.Host(), "mv", file+".good", file)
	}
	up(0, "pando is up", "--data-dir", data)
}

func TestRestartTouchesNoInstanceAndNoConnection(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	before := web.Status().Instances[0]
	hold := web.Hold(labtest.Client)
	pid := func(role string) string { return p.Must(p.Host(), "cat", "/run/pando/"+role+".pid") }
	server, agent := pid("server"), pid("agent")
	if got := p.Pando("daemons", "restart"); !strings.Contains(got, "pando is up on "+p.Host()) {
		t.Errorf("restart printed %s", got)
	}
	if pid("server") == server || pid("agent") == agent {
		t.Error("a daemon is the same as before")
	}
	after := web.AwaitInstances(1).Instances[0]
	if after.ID != before.ID || after.Since != before.Since {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if got := web.Get(labtest.Client, "/"); !strings.HasPrefix(got, string(before.ID)) {
		t.Errorf("got %q from another instance than %s", got, before.ID)
	}
	if out := hold.Stop(); out.Code != 0 {
		t.Errorf("the connection: %s", out.Text)
	}
	got := p.Must(p.Host(), "curl", "-sS", "--fail", "http://127.0.0.1:7400/readyz")
	if !strings.Contains(got, "ok") {
		t.Errorf("readyz: %s", got)
	}
	if got := p.PandoFails(8, "daemons", "restart", "--run-dir",
		"/run/none"); !strings.Contains(got, "start them with `pando up`") {
		t.Errorf("said %s", got)
	}
}

func TestDownRemovesTablesThatNobodyCanOpen(t *testing.T) {
	p := labtest.Up(t)
	pins := "/sys/fs/bpf/pando/" + p.Host()
	p.KillAgent(p.Host())
	p.Must(p.Host(), "mkdir", pins+"/layout-9999")
	got := p.Run(p.Host(), p.Bin, "up", "--data-dir", p.Data(p.Host()), "--host", p.Host())
	if got.Code == 0 || !strings.Contains(got.Text, "pando down --purge") {
		t.Errorf("up over tables of a later layout: code %d\n%s", got.Code, got.Text)
	}
	p.Down(p.Host(), "--purge")
	if got := p.Must(p.Host(), "ls", "/sys/fs/bpf"); strings.Contains(got, "pando") {
		t.Errorf("left behind: %s", got)
	}
}
