package daemon

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pando.run/pando/cmd/pando/cli"
)

// `pando up` starts every role with the flags of its place, and `pando daemons restart` reads them back
// from a command line. A role that refused one would never start.
func TestEveryRoleTakesTheFlagsOfItsPlace(t *testing.T) {
	is := place{
		folders: folders{Run: "/r", Data: "/d"}, Host: "h1", Address: "192.0.2.1",
		Uplinks: []string{"a", "b"}, HTTP: "", Pool: 7, Listen: "x",
		Labels: []string{"zone=a", "rack=3"}, Announce: announceBGP,
		BGP: routing{AS: "64512", Routers: []string{"192.0.2.1=64500", "192.0.2.2=64501"},
			Password: "/p", Hold: 9 * time.Second, BFD: time.Second},
	}
	for _, c := range []*cobra.Command{Server(), Agent()} {
		if err := c.ParseFlags(is.args()); err != nil {
			t.Errorf("%s: %v", c.Name(), err)
		}
	}
	var back place
	c := &cobra.Command{}
	back.flags(c)
	if err := c.ParseFlags(is.args()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(back.args(), is.args()) {
		t.Errorf("got %q, want %q", back.args(), is.args())
	}
}

// A unit that forgot a flag of `pando install` would start another host than the operator wants.
func TestAUnitKeepsEveryFlag(t *testing.T) {
	var p place
	c := &cobra.Command{}
	p.flags(c)
	values := map[string]string{"pool": "7", "uplink": "a,b", "label": "zone=a,rack=3",
		"bgp-hold": "9s", "bgp-bfd": "100ms", "bgp-router": "192.0.2.1=64500,192.0.2.2=64500"}
	var args []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		value := values[f.Name]
		if value == "" {
			value = "x" + f.Name
		}
		args = append(args, "--"+f.Name, value)
	})
	if err := c.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	given := p.given(c.Flags())
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(given, "--"+f.Name) {
			t.Errorf("the unit has no --%s: %q", f.Name, given)
		}
	})
	if n := len(given); n != len(args)+2*3 { // two uplinks, labels and routers
		t.Errorf("the unit has %d words, want %d: %q", n, len(args)+2*3, given)
	}
}

// A flag without effect misleads. `pando down` starts nothing, so it has no flag for a start.
func TestDownHasOnlyTheFlagsThatItUses(t *testing.T) {
	var got []string
	Down(&cli.Output{}).Flags().VisitAll(func(f *pflag.Flag) { got = append(got, f.Name) })
	if want := []string{"data-dir", "drain", "force", "host", "now", "output", "purge",
		"run-dir", "unit-dir", "volumes"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if f := Server().Flags().Lookup("pool"); f == nil || !f.Hidden {
		t.Error("the help of the server names --pool, which has no effect there")
	}
}

// A daemon and its starter record the same pid. The half-written file of one is no obstacle to the
// other.
func TestWritersOfAPidShareNoFile(t *testing.T) {
	p := place{folders: folders{Run: t.TempDir()}, Host: "h1"}
	if err := os.Mkdir(pidFile(p, "agent")+".new", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writePid(p, "agent", os.Getpid()); err != nil {
		t.Error(err)
	}
}
