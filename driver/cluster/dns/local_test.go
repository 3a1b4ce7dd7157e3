package dns

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestWhatNobodyOutsideCanKnowIsNotAskedOutside(t *testing.T) {
	zeros := strings.Repeat("0.", 32)
	for question, want := range map[dns.Question]bool{
		{Name: "0.0.0.0.in-addr.arpa.", Qtype: dns.TypePTR}:              true,
		{Name: "1.0.0.127.IN-ADDR.ARPA.", Qtype: dns.TypePTR}:            true,
		{Name: "2.0.127.10.in-addr.arpa.", Qtype: dns.TypePTR}:           true,
		{Name: "2.0.128.10.in-addr.arpa.", Qtype: dns.TypePTR}:           true,
		{Name: "8.8.8.8.in-addr.arpa.", Qtype: dns.TypePTR}:              false,
		{Name: "2.0.126.10.in-addr.arpa.", Qtype: dns.TypePTR}:           false,
		{Name: "1.1.254.169.in-addr.arpa.", Qtype: dns.TypePTR}:          true,
		{Name: zeros + "ip6.arpa.", Qtype: dns.TypePTR}:                  true,
		{Name: "1." + zeros[2:] + "ip6.arpa.", Qtype: dns.TypePTR}:       true,
		{Name: zeros[12:] + "0.0.0.d.f.1.ip6.arpa.", Qtype: dns.TypePTR}: false,
		{Name: zeros[8:] + "0.0.d.f.ip6.arpa.", Qtype: dns.TypePTR}:      true,
		{Name: zeros[8:] + "8.b.d.2.ip6.arpa.", Qtype: dns.TypePTR}:      false,
		{Name: "0.0.ip6.arpa.", Qtype: dns.TypePTR}:                      false,
		{Name: "in-addr.arpa.", Qtype: dns.TypePTR}:                      false,
		{Name: "0.in-addr.arpa.", Qtype: dns.TypePTR}:                    false,
		{Name: "1.2.3.4.5.in-addr.arpa.", Qtype: dns.TypePTR}:            false,
		{Name: "host1.", Qtype: dns.TypeA}:                               true,
		{Name: "HOST1.", Qtype: dns.TypeAAAA}:                            true,
		{Name: "com.", Qtype: dns.TypeNS}:                                false,
		{Name: "example.org.", Qtype: dns.TypeA}:                         false,
		{Name: ".", Qtype: dns.TypeA}:                                    false,
	} {
		if got := nobodys(question); got != want {
			t.Errorf("%+v: %v, want %v", question, got, want)
		}
	}
}
