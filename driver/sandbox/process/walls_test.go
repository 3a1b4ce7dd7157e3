package process

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// folder makes a folder of the host with a file that every user may read.
func folder(t *testing.T, parent string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a folder of the host needs root")
	}
	dir, err := os.MkdirTemp(parent, "ptest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	err = os.Chmod(dir, 0o777)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "file"), []byte("of the host"), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAnInstanceSeesTheSystemAndNoMoreOfTheHost(t *testing.T) {
	hidden := []string{"/etc/shadow", "/etc/ssh", "/boot", "/etc/cron.d", "/var/spool", "/.host/etc"}
	for _, parent := range []string{"/srv", "/opt", "/var/lib", "/etc", "/mnt", "/var/log"} {
		hidden = append(hidden, folder(t, parent)+"/file")
	}
	d := newDriver(t, 1)
	for _, user := range []string{"", "root"} {
		b := run(t, d, func(s *pando.Spec) { s.User = user }, "sleep", "60")
		for _, path := range hidden {
			if got := inside(t, b, "cat "+path+" 2>/dev/null; ls "+path+" 2>/dev/null"); got != "" {
				t.Errorf("user %q sees %s: %q", user, path, got)
			}
		}
		if got := inside(t, b, "grep -c ' /[.]host' /proc/self/mountinfo"); got != "0" {
			t.Errorf("user %q: %s mounts of the host's root are left", user, got)
		}
		const usual = "getent passwd root && getent services http && test -e /etc/ssl/certs && " +
			"date +%Z && cat /etc/os-release /etc/resolv.conf /etc/hosts && ldd /bin/ls && pwd"
		if code, out, err := b.Exec(t.Context(), []string{"sh", "-c", usual}); code != 0 || err != nil {
			t.Errorf("user %q: usual files are not there: %d, %v\n%s", user, code, err, out)
		}
	}
}

func TestFoldersOfASpecAreSeen(t *testing.T) {
	read, write, single := folder(t, "/srv"), folder(t, "/srv"), folder(t, "/srv")+"/file"
	named, asRoot := folder(t, "/opt"), "0"
	b := run(t, newDriver(t, 1), func(s *pando.Spec) {
		s.User = asRoot
		s.Folders = []pando.Folder{{Path: read}, {Path: write, Write: true}, {Path: single}}
	}, "sh", "-c", "exec sleep 60; cat '"+named+"/file'")
	script := "cat " + read + "/file; echo x >" + read + "/new; echo x >" + write + "/new; " +
		"cat " + single + "; cat " + named + "/file; ls -A " + filepath.Dir(single)
	got := inside(t, b, "("+script+") 2>/dev/null")
	if want := "of the hostof the hostof the hostfile"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for file, want := range map[string]bool{read + "/new": false, write + "/new": true} {
		if _, err := os.Stat(file); (err == nil) != want {
			t.Errorf("%s was written: %v", file, err == nil)
		}
	}
}

// A program outside of the system's folders is seen with its libraries, and a script with its
// interpreter.
func TestAProgramOfItsOwnFolderRuns(t *testing.T) {
	dir := folder(t, "/opt")
	for _, sub := range []string{"bin", "lib", "other/bin"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	other := folder(t, "/opt")
	if out, err := exec.Command("cp", "/bin/sh", other+"/shell").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := "#!" + other + "/shell\ncat " + dir + "/lib/data; exec sleep 60\n"
	for name, what := range map[string]string{"bin/prog": text, "lib/data": "of the program"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(what), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := run(t, newDriver(t, 0), nil, dir+"/bin/prog")
	for deadline := time.Now().Add(time.Minute); !slices.Contains(b.LastLines(5), "of the program"); {
		if time.Now().After(deadline) {
			t.Fatalf("it printed %q", b.LastLines(5))
		}
		breathe(t)
	}
}

func TestAPathThatIsMissingInTheViewIsNamed(t *testing.T) {
	dir := folder(t, "/srv")
	lines := []string{"cannot open '" + dir + "/file': No such file", "/no/such/path"}
	got := missing(lines, t.TempDir())
	whole := strings.Join(got, "\n")
	if len(got) != 1 || !strings.Contains(whole, dir+"/file, but") ||
		!strings.Contains(whole, "`folders`") {
		t.Errorf("got %q", got)
	}
	if got := missing(lines, "/"); got != nil {
		t.Errorf("where nothing is missing: %q", got)
	}
	config := filepath.Join(dir, "file")
	with := func(s *pando.Spec) { s.Environment = map[string]string{"CONFIG": config} }
	b := run(t, newDriver(t, 0), with, "sh", "-c", "cat $CONFIG")
	if e := exited(t, b); !strings.Contains(strings.Join(e.LastLines, "\n"), "the host has "+config) {
		t.Errorf("the end of a program that misses %s: %q", config, e.LastLines)
	}
}

func TestPathsThatACommandNames(t *testing.T) {
	dir := folder(t, "/srv")
	for _, c := range []struct {
		command []string
		want    []string
	}{
		{[]string{"sleep", "1"}, nil},
		{[]string{"ls", "/srv", "/etc", "/proc/self", "/tmp/x"}, nil},
		{[]string{"ls", dir}, []string{dir}},
		{[]string{"ls", "--config=" + dir + "/file"}, []string{dir}},
		{[]string{"sh", "-c", "exec ls '" + dir + "/file'"}, []string{dir}},
		{[]string{"ls", dir + "/absent/file"}, nil},
		{[]string{"cat", "/etc/ssh/sshd_config", "/usr/share/x"}, nil},
	} {
		var got []string
		spec := pando.Spec{Command: c.command, WorkingDir: "/"}
		for _, s := range named(spec, []string{"PATH=/usr/bin:/bin"}) {
			if s.Write {
				t.Errorf("%v: %s may be written", c.command, s.Path)
			}
			if s.Path != "/etc/ssh" {
				got = append(got, s.Path)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: shows %v, want %v", c.command, got, c.want)
		}
	}
}

func TestSecretsAreFilesOfTheProgramAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("hush"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, 1)
	with := func(s *pando.Spec) { s.Secrets = map[string]string{"password": file} }
	b := run(t, d, with, "sleep", "60")
	got := inside(t, b, "cat /run/secrets/password; stat -c ' %a %u' /run/secrets/password; id -u; "+
		"echo x >/run/secrets/password; env | grep -c hush; ls /run/secrets")
	fields := strings.Fields(got)
	if len(fields) < 4 || fields[0] != "hush" || fields[1] != "400" || fields[2] != fields[3] {
		t.Errorf("in the instance: %q", got)
	}
	record, err := os.ReadFile(filepath.Join(b.(*sandbox).slot.dir, "slot.json"))
	if err != nil || strings.Contains(string(record), "hush") {
		t.Errorf("the record of the sandbox: %v\n%s", err, record)
	}
	got = inside(t, run(t, d, nil, "sleep", "60"), "ls /run/secrets 2>&1; cat "+file+" 2>&1")
	if strings.Contains(got, "hush") {
		t.Errorf("another instance: %q", got)
	}
	for text, file := range map[string]string{
		"check `secrets`": "/no/such/file", "may have": "/dev/zero",
	} {
		spec := pando.Spec{Name: "web", Command: []string{"true"}, Secrets: map[string]string{"x": file}}
		_, err := readSecrets(pando.SandboxSpec{Spec: spec})
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", file, err, text)
		}
	}
}

// Programs as Debian packages them find their files.
func TestProgramsOfTheSystemRunBehindTheWalls(t *testing.T) {
	conf := "daemon off; pid /tmp/nginx.pid; error_log stderr;\nevents {}\nhttp {\n" +
		"include /etc/nginx/mime.types; access_log off; client_body_temp_path /tmp/b;\n" +
		"proxy_temp_path /tmp/p; fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u;\n" +
		"scgi_temp_path /tmp/s;\n" +
		"server { listen 8080; root /usr/share/nginx/html; }\n}\n"
	dir := folder(t, "/srv")
	if err := os.WriteFile(dir+"/nginx.conf", []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, 1)
	for _, c := range []struct {
		command []string
		port    string
	}{
		{[]string{"nginx", "-c", dir + "/nginx.conf"}, "8080"},
		{[]string{"redis-server", "--port", "6379", "--protected-mode", "no", "--save", ""}, "6379"},
		// `-m http.server` asks for its own name first, and no name server answers here.
		{[]string{"/usr/bin/python3", "-c", "import http.server as h, socketserver as s; " +
			"s.TCPServer(('', 8080), h.SimpleHTTPRequestHandler).serve_forever()"}, "8080"},
		{[]string{"busybox", "httpd", "-f", "-p", "8080"}, "8080"},
	} {
		if _, err := exec.LookPath(c.command[0]); err != nil {
			t.Logf("%s is not installed", c.command[0])
			continue
		}
		b := run(t, d, func(s *pando.Spec) { s.WorkingDir = dir }, c.command...)
		at := net.JoinHostPort(b.Link().IP4.String(), c.port)
		for deadline := time.Now().Add(time.Minute); ; breathe(t) {
			if conn, err := net.Dial("tcp", at); err == nil {
				conn.Close()
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%v does not listen: %q", c.command, b.LastLines(20))
				break
			}
		}
		if err := b.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
