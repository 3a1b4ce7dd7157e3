package examples

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// TestThreeTier deploys a database, a queue and an API on three hosts by one command. The API waits
// for both others. An order passes through all tiers, also after an upgrade of the API.
func TestThreeTier(t *testing.T) {
	installed(t, "mariadbd", "mariadb-server galera-4 rsync")
	installed(t, "rabbitmqctl", "rabbitmq-server python3-pymysql python3-pika")
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	copyExample(p, "galera")
	file := filepath.Join(copyExample(p, "three-tier"), "pando.yaml")
	for _, name := range []string{"db-password", "queue-password", "queue-cookie"} {
		p.Pando("secret", "set", name, "--file", p.Write(name, "leaf-"+name))
	}
	all := p.DeployOrdinals(file, 3, "db", "queue", "api")
	db, queue, api := all[0], all[1], all[2]
	for _, i := range append(db.Status().Instances, queue.Status().Instances...) {
		for _, a := range api.Status().Instances {
			if a.Born.Before(i.Since) {
				t.Errorf("%s was born at %s, before %s served at %s", a.ID, a.Born, i.ID, i.Since)
			}
		}
	}
	order := func(id string) {
		t.Helper()
		p.AwaitFor(3*labtest.Patience, "order "+id+" to be shipped", func() (string, bool) {
			out := p.Run(labtest.Client, "curl", "-sS", "-m", "5", "-X", "PUT", "-d", "birch",
				api.URL("/orders/"+id))
			got := p.Run(labtest.Client, "curl", "-sS", "-m", "5", api.URL("/orders/"+id))
			return out.Text + got.Text, strings.Contains(got.Text, `"state": "shipped"`)
		})
	}
	order("first")

	spec, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p.Write("three-tier/pando.yaml", strings.Replace(string(spec), "EDITION: first",
		"EDITION: second", 1))
	p.DeployOrdinals(file, 3, "api")
	p.Await("the second edition alone", func() (string, bool) {
		for range 6 {
			if out := api.Get(labtest.Client, "/"); !strings.Contains(out, "second") {
				return out, false
			}
		}
		return "", true
	})
	order("second")
}
