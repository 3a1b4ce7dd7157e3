package members

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

func TestAHostWithOrdinalsIsNotRemoved(t *testing.T) {
	tb := decidetest.FormedGroup(t)
	err := removable(tb.W, pando.Member{Name: "h2"}, false, 0, false)
	if err == nil || !strings.Contains(err.Error(), "1 stateful services") {
		t.Errorf("the host of an ordinal's volumes may go: %v", err)
	}
	if err := removable(tb.W, pando.Member{Name: "h2"}, false, 0, true); err != nil {
		t.Errorf("with --force: %v", err)
	}
	if err := removable(tb.W, pando.Member{Name: "h9"}, false, 0, false); err != nil {
		t.Errorf("another host: %v", err)
	}
}

// The host with the volumes of a service is not removed by mistake, whether the service lives, was
// removed or spreads its instances. The refusal names the services.
func TestAHostWithVolumesIsNotRemoved(t *testing.T) {
	volumes := func(s *pando.Spec) {
		s.Volumes = []pando.Volume{{Name: "data", Path: "/data", Shared: true}}
	}
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h2"})
	tb.Deploy(1, volumes)
	tb.Settle()
	home := tb.W.Services[decidetest.Web].V.Home
	other := map[pando.HostName]pando.HostName{"h1": "h2", "h2": "h1"}[home]
	refused := func(h pando.HostName, want string) {
		t.Helper()
		err := removable(tb.W, pando.Member{Name: h}, false, 0, false)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("the removal of %s answers %v, want %q", h, err, want)
		}
	}
	refused(home, "the volumes of 1 services (web)")
	refused(other, "")
	svc := tb.W.Services[decidetest.Web].V
	svc.Removing = true
	tb.Put(svc)
	for range 10 {
		tb.SettleLoosely()
		tb.Run()
	}
	if len(tb.W.Services) != 0 {
		t.Fatal("the service is still there")
	}
	refused(home, "the volumes of 1 removed services (web)")
	refused(other, "")
}
