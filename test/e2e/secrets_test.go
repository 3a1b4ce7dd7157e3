package e2e

import (
	"crypto/md5"
	"encoding/hex"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

const sealed = `name: shop
command: [sh, -c, "trap 'md5sum </run/secrets/db-password' HUP; md5sum </run/secrets/db-password;
  while :; do sleep 0.1; done"]
health: {ready: started}
place: {only: host=HOST}
secrets: {db-password: {on_change: HUP}}
`

// A secret reaches the program on another host, and each new content with its signal, also after
// the death of the agent. No file of a host, no log and no decision has the content.
func TestASecretOfTheStore(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true})
	spec := strings.Replace(sealed, "HOST", p.Hosts[1], 1)
	has(p, p.DeployFails(4, spec), "pando secret set db-password")
	set := func(content string) {
		p.Helper()
		p.Must(p.Host(), "bash", "-c", "printf "+content+" | "+p.Bin+" secret set db-password")
	}
	watch := p.Start(p.Host(), p.Bin, "watch")
	set("hush-1")
	shop := p.Deploy(spec)
	want := func(content string) {
		p.Helper()
		sum := md5.Sum([]byte(content))
		p.Await("the program reads "+content, func() (string, bool) {
			log := strings.TrimSpace(p.Pando("logs", "shop"))
			return log, strings.Contains(log[strings.LastIndexByte(log, '\n')+1:],
				hex.EncodeToString(sum[:]))
		})
	}
	want("hush-1")
	first := shop.AwaitInstances(1).Instances[0].ID
	set("hush-2")
	want("hush-2")
	p.KillAgent(p.Hosts[1])
	set("hush-3")
	p.Up(p.Hosts[1])
	want("hush-3")
	if now := shop.AwaitInstances(1).Instances[0].ID; now != first {
		p.Errorf("instance %s replaced %s", now, first)
	}
	has(p, p.Pando("secret", "ls"), "db-password", "shop")
	has(p, shop.Why(), "the secret db-password has a new content", "it has new secrets: db-password")
	p.PandoFails(5, "secret", "rm", "db-password")
	for _, host := range p.Hosts {
		if out := p.Run(host, "grep", "-rlaF", "hush-", p.Data(host)); out.Code != 1 {
			p.Errorf("files of %s have the content: %s", host, out.Text)
		}
	}
	seen := watch.Stop().Text
	if strings.Contains(seen, "hush-") || !strings.Contains(seen, "db-password has a new content") {
		p.Errorf("the watch has %s", seen)
	}
	member := p.Run(p.Hosts[1], "bash", "-c", "echo x | "+p.Bin+" secret set db-password")
	if member.Code != 10 {
		p.Errorf("a member sets a secret: code %d: %s", member.Code, member.Text)
	}
	p.Pando("rm", "shop", "--wait")
	has(p, p.Pando("secret", "rm", "db-password"), "is removed")
}
