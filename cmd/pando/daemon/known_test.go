package daemon

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/cluster/trust"
)

func member(name, address string, server bool) pando.Member {
	return pando.Member{
		Name: pando.HostName(name), Address: netip.MustParseAddr(address), Server: server,
	}
}

func members(all ...pando.Member) map[pando.HostName]pando.Member {
	out := map[pando.HostName]pando.Member{}
	for _, m := range all {
		out[m.Name] = m
	}
	return out
}

func knownOf(t *testing.T, host string, m *trust.Membership, serves bool) (*known, place) {
	p := place{folders: folders{Data: t.TempDir(), Run: "/run/pando"}, Host: host}
	return openKnown(p, m, serves, slog.New(slog.NewTextHandler(io.Discard, nil))), p
}

var trio = members(member("one", "192.0.2.1", true), member("two", "192.0.2.2", true),
	member("three", "192.0.2.3", true), member("four", "192.0.2.4", false))

func TestAnAgentKnowsItsServersAfterAStart(t *testing.T) {
	joined := &trust.Membership{Server: "192.0.2.1:7401"}
	k, p := knownOf(t, "four", joined, false)
	if got := k.endpoints(); !slices.Equal(got, []string{"https://192.0.2.1:7402"}) {
		t.Errorf("a new member uses %v", got)
	}
	var used []string
	k.use = func(all []string) error { used = all; return nil }
	k.learn(trio)
	if len(used) != 3 || slices.Contains(used, "https://192.0.2.4:7402") {
		t.Errorf("it uses %v", used)
	}
	again := openKnown(p, joined, false, k.log)
	if got := again.endpoints(); !slices.Equal(got, used) {
		t.Errorf("after a start it uses %v, before %v", got, used)
	}
	used = nil
	k.learn(trio)
	k.learn(nil) // a store that is being restored
	if used != nil {
		t.Errorf("without a change it uses %v", used)
	}
	if got := k.doors("192.0.2.1:7401"); len(got) != 3 || got[0] != "192.0.2.1:7401" {
		t.Errorf("it renews at %v", got)
	}
}

func TestAHostPrefersItsOwnServer(t *testing.T) {
	for _, serves := range []bool{true, false} { // before the list is known, or by the list
		k, _ := knownOf(t, "two", nil, serves)
		k.learn(trio)
		got := k.endpoints()
		if len(got) != 3 || got[0] != "unix:///run/pando/store.sock" ||
			slices.Contains(got, "https://192.0.2.2:7402") {
			t.Errorf("it uses %v", got)
		}
	}
	k, _ := knownOf(t, "four", nil, false)
	k.learn(trio)
	if got := k.endpoints(); strings.HasPrefix(got[0], "unix:") {
		t.Errorf("a host without a server uses %v", got)
	}
}

func TestHostsSpreadOverTheServers(t *testing.T) {
	first := map[string]int{}
	for n := range 300 {
		k, _ := knownOf(t, "h"+strings.Repeat("x", n%7)+string(rune('a'+n%26))+string(rune('a'+n/26)),
			nil, false)
		k.learn(trio)
		first[k.endpoints()[0]]++
	}
	for at, n := range first {
		if len(first) != 3 || n < 50 {
			t.Errorf("%d of 300 hosts use %s first", n, at)
		}
	}
}

func TestAnUnreadableListIsNoReasonToFail(t *testing.T) {
	k, p := knownOf(t, "two", nil, true)
	if err := os.WriteFile(p.knownFile(), []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	k = openKnown(p, nil, true, k.log)
	if got := k.endpoints(); !slices.Equal(got, []string{"unix:///run/pando/store.sock"}) {
		t.Errorf("it uses %v", got)
	}
	k.path = "/proc/none/known"
	k.learn(trio) // a disk that takes nothing
	if got := k.endpoints(); len(got) != 3 {
		t.Errorf("it uses %v", got)
	}
}

func TestNoServerAnswers(t *testing.T) {
	k, _ := knownOf(t, "four", nil, false)
	if _, err := k.reach(t.Context(), &tls.Config{}); !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
	k.learn(members(member("one", "127.0.0.1", true)))
	if _, err := k.reach(t.Context(), &tls.Config{}); err == nil {
		t.Error("it connected without a server")
	}
}
