// Package e2e drives the real pando as an operator does, on virtual hosts. Each test reads like a sentence about what a
// user sees; how it is done is in lab/labtest.
package e2e

import (
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

func TestServiceIsServedAtItsVIP(t *testing.T) {
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	for _, from := range []string{p.Host(), labtest.Client} {
		if got := web.Get(from, "/"); !strings.HasPrefix(got, "web-") {
			t.Errorf("%s got %q", from, got)
		}
		p.Must(from, "ping", "-c", "1", "-W", "5", web.VIP)
		if got := p.Must(from, p.WithEcho(), "udp", web.VIP+":7", "hi"); !strings.HasSuffix(got, " hi\n") {
			t.Errorf("%s got the datagram %q", from, got)
		}
	}
}
