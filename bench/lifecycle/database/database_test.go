//go:build bench

// Package database measures Galera (examples/galera) with one, two and three members by the number
// of concurrent users, as Table II and Fig. 6 of the container-devops paper do. The load is that of
// SysBench, as in the paper. Each member has a part of one processor, so only the shapes compare.
// The kernel of the bench has no GFS2, so shared storage is in the paper's column alone.
package database

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds  = 5
	lasts   = 3 // seconds of a run
	cpus    = 0.25
	most    = 3 // members
	waiting = 4 * time.Minute
	tables  = 4
	size    = 10000 // rows of a table: the number of SysBench
)

var (
	users = []int{10, 100}
	kinds = map[string]string{"read-only": "oltp_read_only", "read-write": "oltp_read_write"}
)

// at names a series.
func at(kind, what string, members, users int) string {
	return fmt.Sprintf("%s, %s, %d members, %d users", kind, what, members, users)
}

func TestDatabase(t *testing.T) {
	p := labtest.UpWith(t, labtest.Options{Hosts: most, One: true})
	p.Pando("secret", "set", "db-password", "--file", p.Write("password", "leaf"))
	var clusters []string // addresses
	for n := range most {
		clusters = append(clusters, deploy(p, n+1))
	}
	out := sheet.Curves(t, ".", "concurrent users")
	turns, _ := sheet.Rounds(rounds, 0)
	for round := range turns {
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			for _, n := range users {
				for k := range clusters {
					k = (k + round) % len(clusters)
					rate, p95 := load(p, clusters[k], kinds[kind], n, "run")
					out.Point(round, fmt.Sprintf("%s, %d members", kind, k+1), float64(n), rate)
					out.Keep(at(kind, "rate", k+1, n), rate)
					out.Keep(at(kind, "p95", k+1, n), p95)
				}
			}
		}
	}
	table2(out)
	figure6(out)
	out.Publish("Galera by users and members (container-devops Table II, Fig. 6)",
		"transactions per second", "--log")
}

// deploy deploys a cluster with some members and returns its address. Its tables are filled.
func deploy(p *labtest.Pando, members int) string {
	p.Helper()
	name := fmt.Sprintf("db%d", members)
	dir := filepath.Join(p.Dir, name)
	if err := os.CopyFS(dir, os.DirFS("../../../examples/galera")); err != nil {
		p.Fatal(err)
	}
	file := filepath.Join(dir, "pando.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		p.Fatal(err)
	}
	spec := strings.NewReplacer("name: db\n", "name: "+name+"\n", "scale: {min: 3}",
		fmt.Sprintf("scale: {min: %d}\nresources: {cpus: %g}", members, cpus)).Replace(string(text))
	if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
		p.Fatal(err)
	}
	p.Pando("deploy", file)
	var at string
	p.AwaitFor(waiting, name+" to serve", func() (string, bool) {
		st, err := p.API(p.Host()).Service(p.Context(), pando.DefaultService(pando.ServiceName(name)))
		at = st.VIP
		return fmt.Sprint(st, err), err == nil && st.InRotation == members
	})
	load(p, at, kinds["read-write"], 1, "prepare")
	return at
}

var (
	transactions = regexp.MustCompile(`transactions: +\d+ +\(([\d.]+) per sec`)
	tail         = regexp.MustCompile(`95th percentile: +([\d.]+)`)
)

// load runs SysBench on the client. It returns the transactions per second and the 95th percentile
// of their milliseconds; both are 0 after `prepare`.
func load(p *labtest.Pando, at, script string, threads int, verb string) (rate, p95 float64) {
	p.Helper()
	said := p.Must(labtest.Client, "sysbench", script, "--db-driver=mysql", "--mysql-host="+at,
		"--mysql-user=app", "--mysql-password=leaf", "--mysql-db=app",
		fmt.Sprintf("--tables=%d", tables), fmt.Sprintf("--table-size=%d", size),
		fmt.Sprintf("--threads=%d", threads), fmt.Sprintf("--time=%d", lasts), verb)
	if verb != "run" {
		return 0, 0
	}
	number := func(r *regexp.Regexp) float64 {
		found := r.FindStringSubmatch(said)
		if found == nil {
			p.Fatalf("sysbench prints no %s:\n%s", r, said)
		}
		v, _ := strconv.ParseFloat(found[1], 64)
		return v
	}
	return number(transactions), number(tail)
}

// table2 compares the two kinds of load on two members.
func table2(out *sheet.Sheet) {
	for n, paper := range map[int]string{
		10:  "0.5 × (27 and 57 ms); GFS2 58 × (2981 and 51 ms)",
		100: "1.7 × (1845 and 1082 ms); GFS2 29 × (28482 and 966 ms)",
	} {
		ro, rw := at("read-only", "p95", 2, n), at("read-write", "p95", 2, n)
		ratio := out.Ratio(rw, ro)
		out.Row(fmt.Sprintf("Table II, two members, %d users: p95 read-write against read-only", n),
			"≤ 2 ×", paper, fmt.Sprintf("%.1f × (%.0f and %.0f ms)", ratio, out.Median(rw),
				out.Median(ro)), ratio <= 2)
	}
}

// figure6 compares the clusters at the largest number of users.
func figure6(out *sheet.Sheet) {
	n := users[len(users)-1]
	gain := map[string]float64{}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		three, one := at(kind, "rate", most, n), at(kind, "rate", 1, n)
		gain[kind] = out.Ratio(three, one)
		out.Row(fmt.Sprintf("Fig. 6, %d users, %s: rate of three members against one", n, kind), "> 1 ×",
			"more", fmt.Sprintf("%.2f × (%.0f and %.0f a second; two %.0f)", gain[kind],
				out.Median(three), out.Median(one), out.Median(at(kind, "rate", 2, n))), gain[kind] > 1)
	}
	out.Row("Fig. 6: the gain of read-write against that of read-only", "< 1 ×", "less",
		fmt.Sprintf("%.2f ×", gain["read-write"]/gain["read-only"]),
		gain["read-write"] < gain["read-only"])
}
