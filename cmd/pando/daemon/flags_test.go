package daemon

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// started returns the place and the flags of a start on a data folder, up to its host's own settings.
func started(t *testing.T, data string, args ...string) (place, *pflag.FlagSet) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a start needs root")
	}
	var p place
	c := &cobra.Command{}
	p.flags(c)
	if err := c.ParseFlags(append([]string{"--data-dir", data}, args...)); err != nil {
		t.Fatal(err)
	}
	if err := p.locate(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.recallFlags(c.Flags()); err != nil {
		t.Fatal(err)
	}
	if err := p.writeFlags(p.lastingFlags(c.Flags())); err != nil {
		t.Fatal(err)
	}
	return p, c.Flags()
}

// A reboot, `pando lab boot` and a plain `pando up` start a data folder without flags.
func TestADataFolderStartedAgainGivesTheSameHost(t *testing.T) {
	data := t.TempDir()
	values := map[string]string{"host": "h7", "pool": "7", "uplink": "a,b", "label": "zone=a,rack=3",
		"bgp-hold": "9s", "bgp-bfd": "100ms", "bgp-router": "192.0.2.1=64500,192.0.2.2=64500",
		"announce": announceBGP, "bgp-password-file": "/p", "listen": ""}
	var args []string
	var all place
	c := &cobra.Command{}
	all.flags(c)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "run-dir" || f.Name == "data-dir" || strings.HasPrefix(f.Name, "store") {
			return // where it is, and store.json
		}
		value, has := values[f.Name]
		if !has {
			value = "x" + f.Name
		}
		args = append(args, "--"+f.Name, value)
	})
	first, _ := started(t, data, args...)
	second, _ := started(t, data)
	if !slices.Equal(first.args(), second.args()) {
		t.Errorf("the second start has %q, want %q", second.args(), first.args())
	}
	third, _ := started(t, data, "--announce", announceNone, "--uplink", "")
	if third.Announce != announceNone || len(third.Uplinks) != 0 || third.Pool != 7 {
		t.Errorf("flags given again have no effect: %q", third.args())
	}
	if fourth, _ := started(t, data); !slices.Equal(fourth.args(), third.args()) {
		t.Errorf("the fourth start has %q, want %q", fourth.args(), third.args())
	}
}

// A unit gets the kept flags too, and running daemons are asked about given flags only.
func TestAUnitHasTheFlagsOfEarlierStarts(t *testing.T) {
	data := t.TempDir()
	started(t, data, "--announce", announceARP)
	p, flags := started(t, data, "--pool", "5")
	if given := p.given(flags); !slices.Contains(given, announceARP) || !slices.Contains(given, "5") {
		t.Errorf("the unit has %q", given)
	}
	var q place
	c := &cobra.Command{}
	q.flags(c)
	if err := c.ParseFlags([]string{"--data-dir", data, "--label", "a=b"}); err != nil {
		t.Fatal(err)
	}
	asked, err := q.recallFlags(c.Flags())
	if err != nil || !asked["label"] || asked["announce"] {
		t.Errorf("asked for %v, %v", asked, err)
	}
}
