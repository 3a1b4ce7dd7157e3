package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// galeraWriters insert rows of their own while the file $1 exists, and print each row that the
// database at $2 has acknowledged.
const galeraWriters = `
for w in 1 2 3; do
	(n=$((w * 1000000)); while test -e $1; do
		n=$((n + 1))
		timeout 5 mariadb --no-defaults -h $2 -u app -pleaf app \
			-e "insert into marks values ($n)" && echo row $n
	done) &
done
wait`

// galera is a cluster of three with writers on the client.
type galera struct {
	*labtest.Pando
	db      *labtest.Service
	stop    string // writers end with this file
	writers *labtest.Process
}

// TestGalera writes into a cluster of three while one member is killed, and while all are. Every
// acknowledged row stays. A killed member gets the missing writes alone, and no copy of all data.
func TestGalera(t *testing.T) {
	installed(t, "mariadbd", "mariadb-server galera-4 rsync")
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	dir := copyExample(p, "galera")
	p.Pando("secret", "set", "db-password", "--file", p.Write("password", "leaf"))
	g := galera{Pando: p, stop: p.Write("writing", "")}
	g.db = p.DeployOrdinals(filepath.Join(dir, "pando.yaml"), 3, "db")[0]
	g.sql(0, "create table app.marks (n bigint primary key)")
	g.writers = p.Start(labtest.Client, "sh", "-c", galeraWriters, "writers", g.stop, g.db.VIP)
	g.more()

	g.kill(1)
	g.joined(1)
	g.incremental(1)
	g.more()

	for n := range 3 {
		g.kill(n)
	}
	p.Await("a bootstrap of the newest member", func() (string, bool) {
		why := g.db.Why()
		return why, strings.Contains(why, "bootstraps: ")
	})
	for n := range 3 {
		g.joined(n)
		g.incremental(n)
	}
	g.more()
	if err := os.Remove(g.stop); err != nil {
		t.Fatal(err)
	}
	all := acknowledged(g.writers.Wait().Text)
	for n := range 3 {
		g.has(n, all)
	}
}

// acknowledged returns the numbers of the rows that writers printed between their errors.
func acknowledged(text string) (rows []string) {
	for line := range strings.Lines(text) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "row "); ok {
			rows = append(rows, n)
		}
	}
	return rows
}

// installed skips a test without one of Debian's programs.
func installed(t *testing.T, program, packages string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed: apt-get install %s", program, packages)
	}
}

// in runs a command of a shell in a member.
func (g galera) in(n int, command string) labtest.Output {
	g.Helper()
	return g.Run(g.Host(), g.Bin, "exec", fmt.Sprintf("db/db-%d", n), "--", "sh", "-c", command)
}

// sql returns the answer of one member to a statement.
func (g galera) sql(n int, statement string) string {
	g.Helper()
	out := g.in(n, "mariadb --no-defaults -u root -S /data/mariadb.sock -Ne '"+statement+"'")
	if out.Code != 0 {
		g.Fatalf("db-%d: %s: %s", n, statement, out.Text)
	}
	return out.Text
}

// more waits until the database has acknowledged more rows.
func (g galera) more() {
	g.Helper()
	had := len(acknowledged(g.writers.Text()))
	g.Await("50 more acknowledged rows", func() (string, bool) {
		text := g.writers.Text()
		return text[max(0, len(text)-400):], len(acknowledged(text)) >= had+50
	})
}

// kill ends a member as a crash would.
func (g galera) kill(n int) {
	g.Helper()
	if out := g.in(n, "kill -9 $(pidof mariadbd)"); out.Code != 0 {
		g.Logf("kill of db-%d: %s", n, out.Text) // the session may die with its sandbox
	}
}

// joined waits until a member that was killed has all writes of the others.
func (g galera) joined(n int) {
	g.Helper()
	g.AwaitFor(3*labtest.Patience, fmt.Sprintf("db-%d to be synced", n), func() (string, bool) {
		out := g.in(n, "./synced")
		return out.Text + g.db.Why(), out.Code == 0
	})
}

// incremental checks that a member got the missing writes alone.
func (g galera) incremental(n int) {
	g.Helper()
	for _, i := range g.db.Status().Instances {
		if i.Ordinal != n+1 || i.Start == pando.StartBootstrap {
			continue
		}
		log := g.Pando.Pando("logs", "db", "--instance", string(i.ID), "--lines", "1000")
		if !strings.Contains(log, "IST completed on joiner") ||
			strings.Contains(log, "SST completed on joiner") {
			g.Errorf("db-%d got a copy of all data:\n%s", n, log)
		}
	}
}

// has compares the rows of a member with the acknowledged ones.
func (g galera) has(n int, all []string) {
	g.Helper()
	rows := map[string]bool{}
	for _, r := range strings.Fields(g.sql(n, "select n from app.marks")) {
		rows[r] = true
	}
	lost := 0
	for _, r := range all {
		if !rows[r] {
			lost++
		}
	}
	if lost > 0 || len(all) < 150 {
		g.Errorf("db-%d lost %d of %d acknowledged rows", n, lost, len(all))
	}
}
