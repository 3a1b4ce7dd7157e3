package examples

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// sooner is how many times sooner a copy of a slow starter must serve, also on a busy machine. The
// figures are in bench/lifecycle/snapshot.
const sooner = 2

// TestWarm starts a slow starter once. Its copies continue a snapshot of it, also on the host of a
// new agent. A copy that cannot is started cold, and the reason is recorded.
func TestWarm(t *testing.T) {
	if _, err := os.Stat(filepath.Join(filepath.Dir(labtest.Build(t, "./cmd/pando")),
		"criu/usr/sbin/criu")); err != nil {
		t.Skip("needs CRIU: deploy/criu unpacks it")
	}
	e := deploy(t, "warm")
	first := e.AwaitInstances(1).Instances[0]
	has := func(want string) {
		t.Helper()
		e.Pando.Await("the reason "+want, func() (string, bool) {
			why := e.Why()
			return why, strings.Contains(why, want)
		})
	}
	has("new instances continue it")
	cold := took(first)

	e.Pando.Pando("scale", "warm", "2", "--for", "1h")
	second := other(e.AwaitInstances(2), first.ID)
	warm := took(second)
	t.Logf("cold %s, warm %s: %.1f times sooner", cold, warm, cold.Seconds()/warm.Seconds())
	if second.From == "" || warm*sooner > cold {
		t.Errorf("a copy was ready after %s, the first instance after %s: want %d times sooner\n%s",
			warm, cold, sooner, e.Why())
	}
	has("it continues the seed " + second.From[7:19])
	page := "http://" + second.IP4.String() + ":8080/6"
	if got := e.Must(e.Host(), "curl", "-sS", page); !strings.HasPrefix(got, "12 "+string(second.ID)) {
		t.Errorf("the copy answers %q", got)
	}
	e.KillAgent(e.Host())
	e.Up(e.Host())
	e.Pando.Pando("scale", "warm", "3", "--for", "1h")
	if third := other(e.AwaitInstances(3), first.ID, second.ID); third.From != second.From {
		t.Errorf("with a new agent a copy continues %q, want %q", third.From, second.From)
	}
}

// took returns the time from the placement of an instance until it was in rotation.
func took(i pando.InstanceStatus) time.Duration { return i.Since.Sub(i.Born) }

// other returns the instance that is none of some.
func other(st pando.ServiceStatus, known ...pando.InstanceID) (o pando.InstanceStatus) {
	for _, i := range st.Instances {
		o = i
		for _, k := range known {
			if i.ID == k {
				o = pando.InstanceStatus{}
			}
		}
		if o.ID != "" {
			return o
		}
	}
	return o
}
