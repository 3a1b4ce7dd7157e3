package attack

import (
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// smallDisk puts the volumes of a host on a disk of their own.
func smallDisk(p *labtest.Pando, host string) {
	volumes := p.Data(host) + "/volumes"
	p.Must(host, "mkdir", "-p", volumes)
	p.Must(host, "mount", "-t", "tmpfs", "-o", "size=40m,mode=711", "tmpfs", volumes)
}

// instances returns the names of the instances of a service.
func (c city) instances(of string) (ids []pando.InstanceID) {
	var st pando.ServiceStatus
	c.PandoJSON(&st, "status", of)
	for _, i := range st.Instances {
		ids = append(ids, i.ID)
	}
	return ids
}

// fillDisk fills the disk with the volumes of a host by the volume of one tenant, and makes another
// volume outgrow its size. The instance of another tenant on that disk writes on.
func (c city) fillDisk() {
	host := c.Hosts[1]
	volumes := c.Data(host) + "/volumes"
	writer := func(name, tenant, size, write string) {
		c.Deploy("name: " + name + "\ntenant: " + tenant + "\nhealth: {ready: started}\n" +
			"command: [sh, -c, 'while sleep 0.05; do " + write + "; done']\n" +
			"volumes: ['d:/d" + size + "']\nplace: {only: host=" + host + "}\n")
	}
	remove := func(what string) {
		c.Pando.Pando("rm", what, "--wait")
		c.Pando.Pando("volume", "rm", what, "d")
	}
	ended := func(what string, words ...string) {
		c.Await("the end of "+what+" by name", func() (string, bool) {
			why := c.Pando.Pando("why", what)
			for _, w := range words {
				if !strings.Contains(why, w) {
					return why, false
				}
			}
			return why, true
		})
	}
	writer("ledger", "bank", "", "echo line >>/d/lines")
	before := c.instances("bank/ledger")
	writer("hog", "acme", "", "head -c 500000 /dev/zero >>/d/file")
	ended("acme/hog", "MiB free of 40 MiB, and keeps 10 MiB", "volume d/1 of acme/hog grew most")
	lines := volumes + "/bank/ledger/d/1/lines"
	was := c.Must(host, "stat", "-c", "%s", lines)
	c.Await("more lines of the other tenant", func() (string, bool) {
		now := c.Must(host, "stat", "-c", "%s", lines)
		return now, len(now) > len(was) || now > was
	})
	if now := c.instances("bank/ledger"); len(now) != 1 || !slices.Equal(now, before) {
		c.Errorf("the instance %s of the other tenant was replaced: %s", before, now)
	}
	remove("acme/hog")
	writer("small", "acme", ":size=1m", "head -c 100000 /dev/zero >>/d/file")
	ended("acme/small", "volume d/1 of acme/small has", "of at most 1 MiB")
	remove("acme/small")
	writer("owner", "acme", "", "true")
	writer("sharer", "acme", ":of=owner,size=1m", "head -c 100000 /dev/zero >>/d/file")
	ended("acme/sharer", "volume d/shared of acme/owner has", "of at most 1 MiB")
	c.Pando.Pando("rm", "acme/sharer", "--wait")
	remove("acme/owner")
	remove("bank/ledger")
	c.Must(host, "umount", "-l", volumes)
}
