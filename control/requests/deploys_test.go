package requests

import (
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
	"pando.run/pando/driver/wall"
)

func TestABundleIsRefusedUntilEveryHostKnowsBundles(t *testing.T) {
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h1", Bundles: true}, pando.Host{Name: "h2"})
	bundled := pando.Spec{Bundle: pando.Bundle{Folder: "/srv/site", Digest: "sha256:1"}}
	if why := unable(tb.W, bundled); !strings.Contains(why, "host h2") {
		t.Errorf("with a host of an older build: %q", why)
	}
	if why := unable(tb.W, pando.Spec{}); why != "" {
		t.Errorf("without a bundle: %q", why)
	}
	tb.Put(pando.Host{Name: "h2", Bundles: true})
	if why := unable(tb.W, bundled); why != "" {
		t.Errorf("with newer hosts: %q", why)
	}
}

func TestADeployThatWouldMoveAServiceIsRefused(t *testing.T) {
	tb := decidetest.Served(t, nil)
	tb.Put(pando.Host{Name: "h2", Labels: "zone=b"})
	spec, svc := pando.Spec{Place: pando.Place{Only: "zone=b"}}, tb.W.Services[web].V
	if why := stuck(tb.W, svc, spec); !strings.Contains(why, "it runs on h1, which lacks") ||
		!strings.Contains(why, "pando rm web") {
		t.Errorf("it is stuck: %q", why)
	}
	wide := spec
	wide.Place.Spread = pando.SpreadHost
	if why := stuck(tb.W, svc, pando.Spec{}) + stuck(tb.W, svc, wide) +
		stuck(tb.W, pando.Service{}, spec); why != "" {
		t.Errorf("no rule, a spread or a new service: %q", why)
	}
	tb.Put(pando.Host{Name: "h1", Labels: "zone=b"})
	if why := stuck(tb.W, svc, spec); why != "" {
		t.Errorf("with the label: %q", why)
	}
	tb.Lose("h1")
	if why := stuck(tb.W, svc, spec); why != "" {
		t.Errorf("its home is away: %q", why)
	}
}

func TestAnotherBundleIsAnotherSpec(t *testing.T) {
	one := pando.Spec{Name: "web", Bundle: pando.Bundle{Folder: "/srv/site", Digest: "sha256:1"},
		Rollout: pando.Rollout{Order: pando.StartFirst}}
	two := one
	two.Bundle.Digest = "sha256:2"
	if !sameSpec(one, one) || sameSpec(one, two) {
		t.Error("two bundles are one spec")
	}
	if got := two.Files(); got.Reference != "bundle:/srv/site" || got.Digest != "sha256:2" {
		t.Errorf("its files are %+v", got)
	}
}

func TestFitsNamesTheHostThatIsChosen(t *testing.T) {
	tb := decidetest.Spread(t, 2, nil)
	tb.Put(pando.Member{Name: "h1"}, pando.Member{Name: "h2"}, pando.Member{Name: "h3"},
		pando.Member{Name: "h4"}, pando.Host{Name: "h1", Leaving: true})
	c := asking(nil, &mirror.Mirror{Clock: wall.Clock{}, IDs: tb.IDs, World: tb.W})
	all, err := c.Fits(t.Context(), web)
	if err != nil || len(all) != 4 {
		t.Fatalf("%+v, %v", all, err)
	}
	tb.Ask(pando.VerbReplicate, tb.W.Of(web)[0].ID)
	before := tb.Hosts()
	tb.Settle()
	tb.Run()
	after := tb.Hosts()
	for n, f := range all[:3] {
		if grew := after[n] > before[n] && before[n] == 0; f.Host != "h1" && f.Next != grew ||
			f.Host != "h1" && f.Instances != before[n] || f.Reason == "" {
			t.Errorf("%+v; there are %d and then %d", f, before[n], after[n])
		}
	}
	if all[0].Reason != "it leaves" || all[3].Reason != "it is away" || all[3].Takes {
		t.Errorf("%+v", all)
	}
	none := pando.DefaultService("none")
	if _, err := c.Fits(t.Context(), none); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("of no service: %v", err)
	}
}

func TestSpreadIsRefusedUntilEveryHostTunnels(t *testing.T) {
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h1", Tunnel: true}, pando.Host{Name: "h2"})
	wide := pando.Spec{Place: pando.Place{Spread: "host"}}
	if why := unable(tb.W, wide); !strings.Contains(why, "place.spread: host h2") {
		t.Errorf("with a host of an older build: %q", why)
	}
	if why := unable(tb.W, pando.Spec{}); why != "" {
		t.Errorf("a service on one host: %q", why)
	}
	tb.Put(pando.Host{Name: "h2", Tunnel: true})
	if why := unable(tb.W, wide); why != "" {
		t.Errorf("with tunnels: %q", why)
	}
}
