package dns

import (
	"strings"
	"testing"

	"github.com/miekg/dns"

	"pando.run/pando/driver/clock"
)

// A resolver that does not answer a question is named, until it answers one.
func TestASilentResolverIsNamed(t *testing.T) {
	upstream := start(t, []string{}) // it answers, if only that it failed
	const gone = "127.0.0.1:1"
	s := New(Config{Addr: "127.0.0.1:0", Upstreams: []string{gone, upstream.Addr()},
		Silent: &Silent{Clock: clock.Clock{}}})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if text := s.config.Silent.String(); text != "" {
		t.Errorf("before the first question: %q", text)
	}
	ask(t, s, "udp", "example.org.", dns.TypeA)
	text := s.config.Silent.String()
	if !strings.HasPrefix(text, gone+" (asked 0s ago)") || strings.Contains(text, upstream.Addr()) {
		t.Errorf("after a question: %q", text)
	}
	if s.config.Silent.note(gone, true); s.config.Silent.String() != "" {
		t.Errorf("after an answer: %q", s.config.Silent)
	}
}
