package examples

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// pgWriter inserts rows by the name of the leader while the file $1 exists, and prints each row that
// was acknowledged.
const pgWriter = `n=0; while test -e $1; do
	n=$((n + 1))
	PGPASSWORD=leaf PGCONNECT_TIMEOUT=2 timeout 5 psql -h leader.pg.pando -U app -d app -qc \
		"insert into rows values ($n)" 2>/dev/null && echo row $n || sleep 0.1
done`

// TestPostgresql cuts the primary's host from all others. Two of three positions decide, a replica
// leads, and writers follow it by one name. The former primary acknowledged nothing meanwhile. It
// follows the new one once its network is back.
func TestPostgresql(t *testing.T) {
	installed(t, "/usr/lib/postgresql/15/bin/postgres", "postgresql")
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 4, Idle: true})
	for n, h := range p.Hosts {
		if n == 0 {
			p.Up(h)
			continue
		}
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
	pg := p.DeployOrdinals(file, 3, "pg")[0]
	p.Deploy("name: writer\ncommand: [sleep, infinity]\nhealth: {ready: started}\nplace: {only: host=" +
		p.Host() + "}\n")
	sql := func(at, statement string) string {
		t.Helper()
		out := p.Run(p.Host(), p.Bin, "exec", "pg/"+at, "--", "sh", "-c",
			"psql -h /tmp -U postgres -d app -Atc '"+statement+"'")
		return strings.TrimSpace(out.Text)
	}
	sql("pg-0", "create table rows (n int primary key); grant all on rows to app")
	stop := p.Write("writing", "")
	writer := p.Start(p.Host(), p.Bin, "exec", "writer", "--", "sh", "-c", pgWriter, "w", stop)
	more := func(what string) {
		t.Helper()
		had := strings.Count(writer.Text(), "row")
		p.Await("more rows "+what, func() (string, bool) {
			return pg.Why() + writer.Text(), strings.Count(writer.Text(), "row") > had+10
		})
	}
	more("at first")

	cut := string(hostsOf(pg.Status())[1])
	for _, other := range append([]string{labtest.Client}, p.Hosts...) {
		if other != cut {
			if err := p.Lab.Cut(cut, other); err != nil {
				t.Fatal(err)
			}
		}
	}
	more("by a new leader")
	why := pg.Why()
	if !strings.Contains(why, "of 2 (hooks.quorum)") || strings.Count(why, " leads in term ") < 2 {
		t.Errorf("no election by a quorum:\n%s", why)
	}
	if err := p.Lab.Heal(cut); err != nil {
		t.Fatal(err)
	}
	p.Await("pg-0 to follow", func() (string, bool) {
		got := sql("pg-0", "select pg_is_in_recovery(), (select status from pg_stat_wal_receiver)")
		return got + pg.Why(), got == "t|streaming"
	})
	more("after the return")
	if err := os.Remove(stop); err != nil {
		t.Fatal(err)
	}
	rows := strings.Fields(strings.ReplaceAll(writer.Wait().Text, "row", ""))
	for n := range 3 {
		at := fmt.Sprintf("pg-%d", n)
		p.Await("all acknowledged rows on "+at, func() (string, bool) {
			got := sql(at, "select count(*) from rows where n in ("+strings.Join(rows, ",")+")")
			return got, got == fmt.Sprint(len(rows))
		})
	}
}
