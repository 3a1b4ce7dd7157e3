package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

const valkey = `name: db
command: [redis-server, --appendonly, "yes", --appendfsync, always, --dir, /var/lib/valkey,
  --protected-mode, "no", --maxclients, "%s"]
ports: ["6379"]
health: {ready: tcp 6379}
volumes: ["data:/var/lib/valkey"]
`

// askStore runs a command of the data store through the service's address.
func askStore(s *labtest.Service, p *labtest.Pando, words ...string) string {
	p.Helper()
	text := ""
	p.Await("an answer to "+strings.Join(words, " "), func() (string, bool) {
		out := p.Run(p.Host(), append([]string{"timeout", "5", "redis-cli", "-h", s.VIP}, words...)...)
		text = strings.TrimSpace(out.Text)
		return text, out.Code == 0 && !strings.Contains(text, "Could not connect") &&
			!strings.Contains(text, "LOADING")
	})
	return text
}

// The data of docs/guides/volumes.md survive a kill, a rollout, a restart of the host and the
// removal of their service.
func TestAVolumeOutlivesEverythingButItsRemoval(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	spec := func(words string) string { return strings.Replace(valkey, "%s", words, 1) }
	db := p.Deploy(spec("100"))
	want := func(when, key string) {
		p.Helper()
		if got := askStore(db, p, "get", key); got != key {
			p.Fatalf("%s, %s is %q", when, key, got)
		}
	}
	put := func(key string) {
		p.Helper()
		if got := askStore(db, p, "set", key, key); got != "OK" {
			p.Fatalf("set %s: %s", key, got)
		}
	}
	put("first")
	former := db.AwaitInstances(1).Instances[0]
	p.Run(p.Host(), p.Bin, "exec", "db", "--", "sh", "-c", "kill -9 $(pidof redis-server)")
	db.Await("a successor with the same volume", func(st pando.ServiceStatus) bool {
		return st.InRotation == 1 && st.Instances[0].ID != former.ID && st.Instances[0].Ordinal == 1
	})
	want("after a kill", "first")
	put("second")
	db.Update(spec("200"))
	want("after a rollout", "second")
	put("third")
	p.Down(p.Host(), "--now")
	p.Up(p.Host())
	want("after a restart of the host", "third")
	p.PandoFails(5, "volume", "rm", "db", "data")
	has(p, p.Pando("volume", "ls"), "data", "db-")
	p.Pando("rm", "db", "--wait")
	has(p, p.Pando("volume", "inspect", "db"), "db data 1", "uid 21", "instances  -")
	db.Update(spec("200"))
	want("after its removal and a new deploy", "third")
	two := p.Write("two.yaml", spec("300")+"rollout: {order: start-first}\n")
	has(p, p.PandoFails(3, "deploy", two),
		"two instances cannot have one volume")
	p.Pando("rm", "db", "--wait")
	file := filepath.Join(p.Dir, "backup")
	p.Pando("backup", "--volumes", file)
	has(p, p.Pando("volume", "rm", "db", "data"), "is deleted")
	has(p, p.Pando("restore", "--volumes", file), "default/db/data/1 is back")
	db.Update(spec("200"))
	want("after a restore of the volumes", "third")
	p.Pando("rm", "db", "--wait")
	has(p, p.Pando("volume", "rm", "db", "data"), "is deleted")
	p.PandoFails(4, "volume", "rm", "db", "data")
	has(p, p.Pando("volume", "ls"), "no volumes")
}
