package process

import (
	"strings"
	"testing"

	"pando.run/pando"
)

// The names of the machine are the instance's own, for images and for programs of the host: its
// name has its address, the name stays where the spec or a volume of its own says so, and files of
// an image or of the host with these names do not count.
func TestAnInstanceHasItsOwnNames(t *testing.T) {
	for name, c := range map[string]struct {
		driver func(*testing.T, int) *Driver
		change func(*pando.Spec)
	}{"of the host": {newDriver, func(*pando.Spec) {}}, "of an image": {newImageDriver, withImage}} {
		t.Run(name, func(t *testing.T) {
			d := c.driver(t, 1)
			b := run(t, d, func(s *pando.Spec) {
				c.change(s)
				s.Hostname = "mail.example.com"
			}, "/bin/sh", "-c", `cat /proc/sys/kernel/hostname /etc/hostname; cat /etc/mtab >/dev/null
				grep -c ^nameserver /etc/resolv.conf; grep mail /etc/hosts; echo tmp $TMPDIR.`)
			exited(t, b)
			at := b.(*sandbox).slot.IP4.String()
			want := "mail.example.com\nmail.example.com\n1\n" + at + " mail.example.com mail\ntmp ."
			if got := strings.Join(b.LastLines(20), "\n"); got != want {
				t.Errorf("it prints %q, want %q", got, want)
			}
		})
	}
}

func TestTheNameOfAnInstanceWithAVolumeOfItsOwnStays(t *testing.T) {
	spec := pando.Spec{Name: "mq"}
	for _, c := range []struct {
		instance pando.Instance
		hostname string
		want     string
	}{
		{pando.Instance{ID: "mq-5uhcp"}, "", "mq-5uhcp"},
		{pando.Instance{ID: "mq-5uhcp", Ordinal: 1}, "", "mq-0"},
		{pando.Instance{ID: "mq-5uhcp", Ordinal: 3}, "", "mq-2"},
		{pando.Instance{ID: "mq-5uhcp", Ordinal: 1}, "rabbit", "rabbit"},
		{pando.Instance{ID: "mq-run", Ordinal: 1, Run: &pando.RunPart{Beside: true}}, "", "mq-run"},
	} {
		spec.Hostname = c.hostname
		if got := hostname(pando.SandboxSpec{Instance: c.instance, Spec: spec}); got != c.want {
			t.Errorf("%+v with %q: %q, want %q", c.instance, c.hostname, got, c.want)
		}
	}
}
