package nat

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/nftables/expr"
	"pgregory.net/rapid"
)

// matches evaluates the expressions of within for one address of a packet.
func matches(t *rapid.T, exprs []expr.Any, header []byte) bool {
	payload, bitwise, compare := exprs[0].(*expr.Payload), exprs[1].(*expr.Bitwise),
		exprs[2].(*expr.Cmp)
	value := bytes.Clone(header[payload.Offset : payload.Offset+payload.Len])
	if len(value) != len(bitwise.Mask) || len(value) != len(compare.Data) {
		t.Fatalf("%d bytes are masked by %d and compared with %d", len(value), len(bitwise.Mask),
			len(compare.Data))
	}
	for n := range value {
		value[n] = value[n]&bitwise.Mask[n] ^ bitwise.Xor[n]
	}
	return bytes.Equal(value, compare.Data) == (compare.Op == expr.CmpOpEq)
}

// A rule matches the addresses of its range, at the source or at the destination of a packet, for
// prefixes of any length.
func TestARuleMatchesItsRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size, at := 4, 12 // IPv4: the source is at byte 12
		if rapid.Bool().Draw(t, "IPv6") {
			size, at = 16, 8
		}
		draw := func(name string) netip.Addr {
			a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, name))
			return a
		}
		header := make([]byte, 40)
		from, to := draw("source"), draw("destination")
		copy(header[at:], from.AsSlice())
		copy(header[at+size:], to.AsSlice())
		bits := rapid.IntRange(0, 8*size).Draw(t, "bits")
		base := rapid.SampledFrom([]netip.Addr{from, to, draw("other")}).Draw(t, "base")
		p := netip.PrefixFrom(base, bits)
		for _, c := range []struct {
			end  end
			addr netip.Addr
		}{{source, from}, {destination, to}} {
			if got := matches(t, c.end.within(p, expr.CmpOpEq), header); got != p.Contains(c.addr) {
				t.Fatalf("%s in %s: %v", c.addr, p, got)
			}
			if got := matches(t, c.end.within(p, expr.CmpOpNeq), header); got == p.Contains(c.addr) {
				t.Fatalf("%s not in %s: %v", c.addr, p, got)
			}
		}
	})
}
