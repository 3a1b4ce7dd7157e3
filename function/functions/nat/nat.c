/* SPDX-License-Identifier: Apache-2.0
 *
 * Source NAT for TCP, UDP and ping over IPv4 (SNF §8): each flow that begins inside gets a port of
 * the NAT's address. A ping gets it as its identifier. ICMP errors about a flow pass both ways, so
 * path MTU discovery and traceroute work (RFC 5508). A unit leases its ports in blocks, so units
 * need no agreement while packets flow. Outside is the device of `--out`: its packets begin no flow,
 * whatever address they claim. With one device, `inside` is all that tells the sides apart.
 *
 * Configuration:
 *     address=192.0.2.1    the address that the outside sees (needed)
 *     inside=10.0.0.0/8    the network that may begin flows; default: any
 */
#include <pando_nf.h>

/* The state of a flow. It is written once, so units push no state after the first packet. */
struct state {
	uint32_t inside_address;
	uint16_t inside_port;
	uint16_t port;
};

static uint32_t nat_address, inside_network, inside_mask;

static int configure(const uint8_t *config, uint32_t length)
{
	int bad = 0;
	uint32_t size;
	const uint8_t *value = pando_config_value(config, length, "address", &size);
	if (!value)
		return 1;
	nat_address = pando_config_ipv4(&value, value + size, &bad);
	inside_network = inside_mask = 0;
	value = pando_config_value(config, length, "inside", &size);
	if (value) {
		const uint8_t *end = value + size;
		inside_network = pando_config_ipv4(&value, end, &bad);
		uint32_t bits = 0;
		if (value >= end || *value++ != '/' || value >= end)
			return 2;
		for (; value < end; value++)
			bits = *value >= '0' && *value <= '9' && bits < 100 ? bits * 10 + (*value - '0') : 100;
		if (bits > 32)
			return 2;
		inside_mask = bits ? ~0u << (32 - bits) : 0;
		inside_network &= inside_mask;
	}
	return bad ? 2 : 0;
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct pando_headers h, quoted;
	uint8_t *p = pando_data(packet);
	struct state s;
	if (!pando_parse(p, packet->length, &h) || h.version != 4 || p[h.ip + 8] <= 1)
		return PANDO_DROP;
	/* The quoted packet went the other way: its source is the error's destination. */
	uint32_t error_sum = pando_quoted(p, &h, &quoted) ? h.transport + 2 : 0;
	const struct pando_headers *named = error_sum ? &quoted : &h;
	if (!(error_sum ? named->protocol == 6 || named->protocol == 17 : pando_has_ports(named)) &&
	    !pando_is_echo(p, named))
		return PANDO_DROP;
	if (packet->flags & PANDO_TRANSLATED) {
		if (!pando_get(ctx, &s))
			return PANDO_DROP;
		pando_rewrite_ipv4(p, &h, 1, s.inside_address, error_sum ? -1 : s.inside_port, 0);
		if (error_sum)
			pando_rewrite_ipv4(p, &quoted, 0, s.inside_address, s.inside_port, error_sum);
	} else {
		if (packet->flags & PANDO_OUTER) /* by an inside address, which it has or claims */
			return PANDO_DROP;
		if (!pando_get(ctx, &s)) {
			uint32_t port;
			uint32_t source = pando_be32(p + h.ip + 12);
			if (error_sum || (source & inside_mask) != inside_network ||
			    !pando_lease(ctx, &port))
				return PANDO_DROP;
			uint32_t port_at = h.transport + (pando_has_ports(&h) ? 0 : 4);
			s = (struct state){source, pando_be16(p + port_at), (uint16_t)port};
			pando_put(ctx, &s);
			pando_alias(ctx);
		}
		if (packet->flags & PANDO_REPLY) /* to the inside address, which the outside must not use */
			return PANDO_DROP;
		pando_rewrite_ipv4(p, &h, 0, nat_address, error_sum ? -1 : s.port, 0);
		if (error_sum)
			pando_rewrite_ipv4(p, &quoted, 1, nat_address, s.port, error_sum);
	}
	uint16_t before = pando_be16(p + h.ip + 8);
	p[h.ip + 8]--;
	uint8_t *checksum = p + h.ip + 10;
	pando_set_be16(checksum,
	    pando_checksum_update(pando_be16(checksum), before, pando_be16(p + h.ip + 8)));
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("nat", struct state, process_packet, configure, 1);
