//go:build bench

// Package devops measures the case of the container-devops paper (§IV-A, Tables IV and V): a
// database, a queue and an API, three times each, on three virtual hosts of one machine. The paper
// had three machines, larger services and images to bring. So only the order of magnitude counts.
package devops

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/sheet"

	"pando.run/pando/lab/labtest"
)

// requestsMin is the least number of requests during an upgrade.
const requestsMin = 5000

// table is the sheet of the bench with the steps of a round.
type table struct{ *sheet.Sheet }

func TestCase(t *testing.T) {
	s := table{sheet.New(t, ".")}
	rounds, _ := sheet.Rounds(5, 0)
	for round := range rounds {
		if !t.Run(fmt.Sprint(round), func(t *testing.T) { s.round(t, round) }) {
			return
		}
	}
	s.rows()
	s.Publish("The case of container-devops", "s or requests", "--log")
}

// rows makes the rows of the table.
func (s table) rows() {
	deploy, chain := s.Median("deploy s"), s.Median("deploy against its slowest chain")
	s.Row("deploy Galera ×3, RabbitMQ ×3 and an API ×3, programs present", "≤ 60 s", "358 s",
		fmt.Sprintf("%.1f s", deploy), deploy <= 60)
	s.Row("the same against its slowest chain", "≤ 1.1 ×", "", fmt.Sprintf("%.2f ×", chain),
		chain <= 1.1)
	upgrade := s.Median("upgrade s")
	s.Row("upgrade the three instances of the API under load", "≤ 15 s", "207 s",
		fmt.Sprintf("%.1f s", upgrade), upgrade <= 15)
	failed, least := 0.0, slices.Min(s.Values("requests during the upgrade"))
	for _, n := range s.Values("failed during the upgrade") {
		failed += n
	}
	s.Row("requests that failed meanwhile, all rounds", fmt.Sprintf("0 of ≥ %d a round", requestsMin),
		"", fmt.Sprintf("%.0f of ≥ %.0f a round", failed, least), failed == 0 && least >= requestsMin)
	synced := s.Median("killed member synced s")
	s.Row("a killed member of the database is synced again, detection included", "≤ 8 s", "32 s",
		fmt.Sprintf("%.1f s", synced), synced <= 8)
}

// scene is a lab with the application.
type scene struct {
	*labtest.Pando
	file string
}

// round deploys the application on new hosts, upgrades the API under load, and kills a member of
// the database.
func (s table) round(t *testing.T, round int) {
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	c := scene{p, filepath.Join(p.Dir, "three-tier", "pando.yaml")}
	for _, name := range []string{"galera", "three-tier"} {
		from := os.DirFS(filepath.Join("../../../examples", name))
		if err := os.CopyFS(filepath.Join(p.Dir, name), from); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"db-password", "queue-password", "queue-cookie"} {
		p.Pando("secret", "set", name, "--file", p.Write(name, "leaf-"+name))
	}
	begin := time.Now()
	p.Pando("deploy", c.file)
	for _, name := range []pando.ServiceName{"db", "queue", "api"} {
		c.await(name, func(st pando.ServiceStatus) bool { return st.InRotation == 3 })
	}
	s.Note(round, "deploy s", time.Since(begin).Seconds())
	s.Note(round, "deploy against its slowest chain", c.chain(begin))
	s.upgrade(c, round)
	s.kill(c, round)
}

// await waits up to five minutes for a status of a service.
func (c scene) await(
	name pando.ServiceName, is func(pando.ServiceStatus) bool,
) (st pando.ServiceStatus) {
	c.Helper()
	tick := time.Tick(20 * time.Millisecond)
	for until := time.Now().Add(5 * time.Minute); time.Now().Before(until); <-tick {
		st, err := c.API(c.Host()).Service(c.Context(), pando.DefaultService(name))
		if err == nil && is(st) {
			return st
		}
	}
	c.Fatalf("%s does not come: %s", name, c.Pando.Pando("why", string(name)))
	return st
}

// chain returns the time of the deploy against that of its slowest chain: the slower one of the
// database and the queue, then the API. A part lasts from the birth of its first instance to the
// rotation of its last. So waits of Pando between the parts count against it.
func (c scene) chain(begin time.Time) float64 {
	took := func(name pando.ServiceName) (all time.Duration, end time.Time) {
		born := time.Now()
		st := c.await(name, func(st pando.ServiceStatus) bool { return st.InRotation == 3 })
		for _, i := range st.Instances {
			if i.Born.Before(born) {
				born = i.Born
			}
			if i.Since.After(end) {
				end = i.Since
			}
		}
		return end.Sub(born), end
	}
	db, _ := took("db")
	queue, _ := took("queue")
	api, end := took("api")
	return end.Sub(begin).Seconds() / (max(db, queue) + api).Seconds()
}

// upgrade deploys another edition of the API under load.
func (s table) upgrade(c scene, round int) {
	spec, err := os.ReadFile(c.file)
	if err != nil {
		c.Fatal(err)
	}
	api := c.await("api", func(pando.ServiceStatus) bool { return true })
	load := visit(c, "http://"+api.VIP, 8)
	next := strings.Replace(string(spec), "EDITION: first", "EDITION: second", 1)
	c.Write("three-tier/pando.yaml", next)
	begin := time.Now()
	c.Pando.Pando("deploy", c.file)
	c.await("api", func(st pando.ServiceStatus) bool {
		for _, i := range st.Instances {
			if i.Revision != 2 {
				return false
			}
		}
		return st.InRotation == 3 && st.Current == 2
	})
	s.Note(round, "upgrade s", time.Since(begin).Seconds())
	load.atLeast(requestsMin)
	requests, failures := load.end()
	s.Note(round, "requests during the upgrade", float64(requests))
	s.Note(round, "failed during the upgrade", float64(len(failures)))
	for _, f := range failures[:min(5, len(failures))] {
		c.Log(f)
	}
}

// kill ends a member of the database as a crash would, and waits until it is synced again.
func (s table) kill(c scene, round int) {
	api := c.await("api", func(pando.ServiceStatus) bool { return true })
	load := visit(c, "http://"+api.VIP, 8)
	begin := time.Now()
	c.Pando.Pando("exec", "db/db-1", "--", "sh", "-c", "kill -9 $(pidof mariadbd)")
	tick := time.Tick(50 * time.Millisecond)
	for c.Run(c.Host(), c.Bin, "exec", "db/db-1", "--", "./synced").Code != 0 {
		if time.Since(begin) > 2*time.Minute {
			c.Fatalf("db-1 does not come back: %s", c.Pando.Pando("why", "db"))
		}
		<-tick
	}
	s.Note(round, "killed member synced s", time.Since(begin).Seconds())
	requests, failures := load.end()
	s.Note(round, "requests during the kill", float64(requests))
	s.Note(round, "failed during the kill", float64(len(failures)))
	for _, f := range failures[:min(5, len(failures))] {
		c.Log(f)
	}
}
