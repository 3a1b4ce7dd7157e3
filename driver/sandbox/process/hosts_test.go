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

// The agent sees by which families the program of an instance accepts, in its own network.
func TestTheListenersOfAnInstanceAreSeen(t *testing.T) {
	ports := []pando.Port{{Published: 80, Target: 8080, Protocol: pando.TCP}}
	other := []pando.Port{{Published: 80, Target: 8081, Protocol: pando.TCP}}
	for at, c := range map[string]struct {
		family string
		want   pando.Hearing
	}{"0.0.0.0": {"AF_INET", "4"}, "::": {"AF_INET6", "46"}} {
		t.Run(at, func(t *testing.T) {
			b := run(t, newDriver(t, 0), nil, "python3", "-uc", "import socket,time; "+
				"s=socket.socket(socket."+c.family+"); s.bind(('"+at+"',8080)); s.listen(); "+
				"print('ready'); time.sleep(60)")
			awaitLast(t, b, "ready")
			if got, err := b.Hears(ports); got != c.want || err != nil {
				t.Errorf("%q, %v, want %q", got, err, c.want)
			}
			if got, err := b.Hears(other); got != "" || err != nil {
				t.Errorf("a port without a listener: %q, %v", got, err)
			}
		})
	}
}
