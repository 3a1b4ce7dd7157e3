package probe

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"pando.run/pando"
)

// The probe follows the answers of a real server: serving, not serving, no health service, and no
// server at all.
func TestGRPC(t *testing.T) {
	serve := func(s *grpc.Server) uint16 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Stop)
		go func() { _ = s.Serve(l) }()
		return netip.MustParseAddrPort(l.Addr().String()).Port()
	}
	expect := func(port uint16, want string) {
		t.Helper()
		limit := patience
		if want == silence {
			limit = brief
		}
		err := ask(t, pando.Probe{Kind: pando.ProbeGRPC}, port, limit)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	s, h := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(s, h)
	port := serve(s)
	expect(port, "")
	h.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	expect(port, "it answered NOT_SERVING")
	s.Stop()
	expect(port, "refused")
	expect(serve(grpc.NewServer()), "has no grpc.health.v1.Health")

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	expect(netip.MustParseAddrPort(silent.Addr().String()).Port(), silence)
}
