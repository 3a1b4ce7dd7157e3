package examples

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// pgWriter inserts rows by the leader's name while the file $1 exists, and prints each acknowledged
// one.
const pgWriter = `n=0; while test -e $1; do
	n=$((n + 1))
	PGPASSWORD=leaf PGCONNECT_TIMEOUT=2 timeout 5 psql -h leader.pg.pando -U app -d app -qc \
		"insert into marks values ($n)" && echo row $n || sleep 0.1
done`

// postgresql is a primary with two replicas, and a writer on another host.
type postgresql struct {
	*labtest.Pando
	pg     *labtest.Service
	stop   string // the writer ends with this file
	writer *labtest.Process
}

// TestPostgresql cuts the primary's host from all others. Two of three positions decide, a replica
// leads, and writers follow it by one name. The former primary acknowledged nothing meanwhile. It
// follows the new one once its network is back.
func TestPostgresql(t *testing.T) {
	installed(t, "pg_lsclusters", "postgresql")
	t.Parallel()
	d := deployPostgresql(t)
	d.more("at first")
	cut := string(hostsOf(d.pg.Status())[1])
	for _, other := range append([]string{labtest.Client}, d.Hosts...) {
		if other == cut {
			continue
		}
		if err := d.Lab.Cut(cut, other); err != nil {
			t.Fatal(err)
		}
	}
	d.AwaitFor(3*labtest.Patience, "the end of the replicas", func() (string, bool) {
		why := d.pg.Why()
		return why, strings.Count(why, "it exited with 0") > 1
	})
	d.AwaitFor(3*labtest.Patience, "another leader", func() (string, bool) {
		why := d.pg.Why()
		return why, strings.Contains(why, "of 2 (hooks.quorum)") &&
			strings.Count(why, " leads in term ") > 1
	})
	d.more("by a new leader")
	if err := d.Lab.Heal(cut); err != nil {
		t.Fatal(err)
	}
	d.AwaitFor(3*labtest.Patience, "pg-0 to follow", func() (string, bool) {
		got := d.sql(0, "select pg_is_in_recovery(), (select status from pg_stat_wal_receiver)")
		return got + d.pg.Why(), got == "t|streaming"
	})
	d.more("after the return")
	if err := os.Remove(d.stop); err != nil {
		t.Fatal(err)
	}
	rows := acknowledged(d.writer.Wait().Text)
	for n := range 3 {
		d.Await(fmt.Sprintf("all acknowledged rows on pg-%d", n), func() (string, bool) {
			got := d.sql(n, "select count(*) from marks where n in ("+strings.Join(rows, ",")+")")
			return got, got == fmt.Sprint(len(rows))
		})
	}
}

// deployPostgresql deploys the example on three of four hosts, so that none of them has the server.
func deployPostgresql(t *testing.T) postgresql {
	t.Helper()
	p := labtest.UpWith(t, labtest.Options{Hosts: 4, Idle: true})
	p.Up(p.Host())
	for _, h := range p.Hosts[1:] {
		p.Up(h, append(p.Invitation(), "--label", "kind=db")...)
	}
	file := filepath.Join(copyExample(p, "postgresql"), "pando.yaml")
	spec, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p.Write("postgresql/pando.yaml", strings.Replace(string(spec), "{spread: host}",
		"{spread: host, only: kind=db}", 1))
	for _, name := range []string{"pg-admin", "pg-app"} {
		p.Pando("secret", "set", name, "--file", p.Write(name, "leaf"))
	}
	d := postgresql{Pando: p, stop: p.Write("writing", "")}
	d.pg = p.DeployOrdinals(file, 3, "pg")[0]
	p.Deploy("name: writer\ncommand: [sleep, infinity]\nhealth: {ready: started}\n" +
		"place: {only: host=" + p.Host() + "}\nfolders: [" + p.Dir + "]\n")
	d.sql(0, "create table marks (n int primary key); grant all on marks to app")
	d.writer = p.Start(p.Host(), p.Bin, "exec", "writer", "--", "sh", "-c", pgWriter, "w", d.stop)
	return d
}

// sql returns the answer of one ordinal to a statement, or its error.
func (d postgresql) sql(n int, statement string) string {
	d.Helper()
	return strings.TrimSpace(d.Run(d.Host(), d.Bin, "exec", fmt.Sprintf("pg/pg-%d", n), "--", "sh",
		"-c", "psql -h /tmp -U postgres -d app -Atc '"+statement+"'").Text)
}

// more waits until more rows are acknowledged.
func (d postgresql) more(when string) {
	d.Helper()
	had := len(acknowledged(d.writer.Text()))
	d.AwaitFor(3*labtest.Patience, "more rows "+when, func() (string, bool) {
		text := d.writer.Text()
		return text[max(0, len(text)-400):] + d.pg.Why(), len(acknowledged(text)) > had+10
	})
}
