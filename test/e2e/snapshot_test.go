package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// counter counts its requests in memory, and keeps connections open.
const counter = `
import os, socketserver, sys
count = 0
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        global count
        while self.rfile.readline():
            count += 1
            self.wfile.write(b"%d %s\n" % (count, os.uname().nodename.encode()))
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
ballast = os.urandom(int(sys.argv[1]) << 20)
hidden = sys.argv[-1][::-1] # only its memory has this text
Server(("0.0.0.0", 9000), Handler).serve_forever()
`

// needsCRIU skips a test on a machine without CRIU.
func needsCRIU(t *testing.T) {
	t.Helper()
	bin := filepath.Dir(labtest.Build(t, "./cmd/pando"))
	for _, dir := range []string{os.Getenv("PANDO_CRIU"), filepath.Join(bin, "criu")} {
		if _, err := os.Stat(filepath.Join(dir, "usr/sbin/criu")); dir != "" && err == nil {
			return
		}
	}
	t.Skip("needs CRIU: deploy/criu unpacks it")
}

func counterSpec(p *labtest.Pando, mebibytes int, lines ...string) string {
	p.Write("counter.py", counter)
	return fmt.Sprintf("name: game\ncommand: [python3, %s, %q]\nports: [\"9000\"]\n"+
		"health: {ready: tcp 9000}\n%s\n", filepath.Join(p.Dir, "counter.py"),
		fmt.Sprint(mebibytes), strings.Join(lines, "\n"))
}

func takeSnapshot(p *labtest.Pando, of string, flags ...string) (st pando.SnapshotStatus) {
	p.Helper()
	words := append([]string{"snapshot", of, "-o", "json"}, flags...)
	if err := json.Unmarshal([]byte(p.Pando(words...)), &st); err != nil {
		p.Fatal(err)
	}
	return st
}

// count asks for the next number.
func count(t *testing.T, conn net.Conn) (n int, who string) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(labtest.Patience)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(conn, "more")
	if _, err := fmt.Fscanln(conn, &n, &who); err != nil {
		t.Fatal(err)
	}
	return n, who
}

// The journey of docs/guides/snapshot.md on one host.
func TestASnapshotContinuesAsAnotherInstance(t *testing.T) {
	t.Parallel()
	needsCRIU(t)
	p := labtest.Up(t)
	game := p.Deploy(counterSpec(p, 10, "scale: {min: 1, max: 2}"))
	first := game.AwaitInstances(1).Instances[0]
	dial := p.Dialer(p.Host())
	conn, err := dial(game.VIP + ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func() (n int, who string) { t.Helper(); return count(t, conn) }
	for range 3 {
		ask()
	}
	st := takeSnapshot(p, "game", "--plain")
	if st.Encrypted || st.Instance != first.ID || st.Bytes < 10<<20 || st.StoppedSeconds <= 0 {
		t.Errorf("snapshot %+v of %s", st, first.ID)
	}
	if n, who := ask(); n != 4 || who != string(first.ID) {
		t.Errorf("the instance answers %d as %s after its snapshot", n, who)
	}
	has(t, p.Pando("snapshot", "ls", "game"), string(first.ID), st.Digest[7:19])
	has(t, p.Pando("why", "game"), "snapshot", "stood still")
	began := time.Now()
	has(t, p.Pando("restore", "game", "--from", st.Digest[7:19]), "continues snapshot")
	all := game.AwaitInstances(2).Instances
	t.Logf("restored and in rotation after %s; stood still for %.3f s", time.Since(began),
		st.StoppedSeconds)
	for _, i := range all {
		if i.ID == first.ID {
			continue
		}
		other, err := dial(i.IP4.String() + ":9000")
		if err != nil {
			t.Fatal(err)
		}
		if n, who := count(t, other); n != 4 || who != string(i.ID) {
			t.Errorf("the restored instance answers %d as %s, want 4 as %s", n, who, i.ID)
		}
		other.Close()
	}
	has(t, p.PandoFails(5, "restore", "game", "--from", st.Digest[7:19]), "2 of max 2", "scale.max")
	has(t, p.PandoFails(4, "restore", "game", "--from", "123456"), "snapshot ls game")
	p.Pando("snapshot", "rm", "game", st.Digest[7:19])
	has(t, p.Pando("snapshot", "ls"), "no snapshots")
}

// A snapshot continues on another host, and is encrypted unless the operator says otherwise. The
// disks of both hosts lack the memory of the program.
func TestAnEncryptedSnapshotContinuesOnAnotherHost(t *testing.T) {
	t.Parallel()
	needsCRIU(t)
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true, Flags: []string{"--pool", "1"}})
	text := "the-memory-of-the-game-has-this-text"
	spec := strings.Replace(counterSpec(p, 1, "scale: {min: 1, max: 2}",
		"place: {spread: host}"), `"1"]`, `"1", `+text+`]`, 1)
	game := p.Deploy(spec)
	first := game.AwaitInstances(1).Instances[0]
	dial := p.Dialer(p.Host())
	conn, err := dial(first.IP4.String() + ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	count(t, conn)
	st := takeSnapshot(p, "game")
	if !st.Encrypted {
		t.Errorf("snapshot %+v", st)
	}
	has(t, p.Pando("snapshot", "ls", "game"), "encrypted")
	has(t, p.Pando("restore", "game", "--from", st.Digest[7:19]), "continues snapshot")
	for _, i := range game.AwaitInstances(2).Instances {
		if i.ID == first.ID {
			continue
		}
		if i.Host == first.Host {
			t.Errorf("both instances are on %s", i.Host)
		}
		p.Await("an answer of the copy", func() (string, bool) {
			other, err := dial(i.IP4.String() + ":9000")
			if err != nil {
				return err.Error(), false
			}
			defer other.Close()
			n, who := count(t, other)
			return fmt.Sprint(n, who), n == 2 && who == string(i.ID)
		})
	}
	has(t, p.Pando("audit"), "the key of encrypted snapshots")
	hidden := []byte(text)
	slices.Reverse(hidden)
	for _, h := range p.Hosts {
		for _, path := range filesWith(t, p.Data(h), hidden) {
			t.Errorf("the memory of the program is readable in %s", path)
		}
	}
}

// filesWith returns the files below a folder that contain a text.
func filesWith(t *testing.T, dir string, text []byte) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // it was removed meanwhile
		}
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, text) {
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
