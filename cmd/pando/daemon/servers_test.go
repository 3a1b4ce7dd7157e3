package daemon

import (
	"net"
	"net/http/httptest"
	"net/netip"
	"testing"

	"pando.run/pando/driver/store/etcd"
)

// A stopped server does not answer, although its kernel accepts connections. Else a server would be
// given up that the majority needs.
func TestAStoppedServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	runs := httptest.NewTLSServer(nil)
	defer runs.Close()
	stopped, err := net.Listen("tcp", "127.0.0.1:0") // its connections are never accepted
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	gone := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 1).String()
	all := asked(t.Context(), "h1", []etcd.Peer{{Name: "h1", Address: gone},
		{Name: "h2", Address: runs.Listener.Addr().String()},
		{Name: "h3", Address: stopped.Addr().String()}, {Name: "h4", Address: gone}})
	for n, want := range []bool{true, true, false, false} {
		if got := all[n].Answers; got != want {
			t.Errorf("%s answers: %t, want %t", all[n].Name, got, want)
		}
	}
}
