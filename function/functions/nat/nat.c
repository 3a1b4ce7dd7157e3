/* SPDX-License-Identifier: Apache-2.0
 *
 * Source NAT for TCP and UDP over IPv4 (SNF §8): each flow that begins inside gets a port of the
 * NAT's address. A unit leases its ports in blocks, so units need no agreement while packets flow.
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

/* Replaces an address and a port, and updates the checksums of IP and of the transport. */
static void rewrite(uint8_t *p, const struct pando_headers *h, uint32_t address_at,
		    uint32_t port_at, uint32_t address, uint16_t port)
{
	uint8_t *ip_checksum = p + h->ip + 10, *checksum = p + h->transport + (h->protocol == 6 ? 16 : 6);
	uint16_t high = pando_be16(p + address_at), low = pando_be16(p + address_at + 2);
	uint16_t new_high = (uint16_t)(address >> 16), new_low = (uint16_t)address;
	uint16_t sum = pando_checksum_update(pando_be16(ip_checksum), high, new_high);
	pando_set_be16(ip_checksum, pando_checksum_update(sum, low, new_low));
	sum = pando_be16(checksum);
	if (h->protocol == 6 || sum) { /* UDP: 0 means no checksum and stays; it is never the result */
		sum = pando_checksum_update(pando_checksum_update(sum, high, new_high), low, new_low);
		sum = pando_checksum_update(sum, pando_be16(p + port_at), port);
		pando_set_be16(checksum, h->protocol == 17 && !sum ? 0xffff : sum);
	}
	pando_set_be16(p + address_at, new_high);
	pando_set_be16(p + address_at + 2, new_low);
	pando_set_be16(p + port_at, port);
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct pando_headers h;
	uint8_t *p = pando_data(packet);
	struct state s;
	if (!pando_parse(p, packet->length, &h) || h.version != 4 || !pando_has_ports(&h) ||
	    p[h.ip + 8] <= 1)
		return PANDO_DROP;
	if (packet->flags & PANDO_TRANSLATED) {
		if (!pando_get(ctx, &s))
			return PANDO_DROP;
		rewrite(p, &h, h.ip + 16, h.transport + 2, s.inside_address, s.inside_port);
	} else {
		if (!pando_get(ctx, &s)) {
			uint32_t port;
			uint32_t source = pando_be32(p + h.ip + 12);
			if ((source & inside_mask) != inside_network || !pando_lease(ctx, &port))
				return PANDO_DROP;
			s = (struct state){source, pando_be16(p + h.transport), (uint16_t)port};
			pando_put(ctx, &s);
			pando_alias(ctx);
		}
		if (packet->flags & PANDO_REPLY) /* to the inside address, which the outside must not use */
			return PANDO_DROP;
		rewrite(p, &h, h.ip + 12, h.transport, nat_address, s.port);
	}
	uint16_t before = pando_be16(p + h.ip + 8);
	p[h.ip + 8]--;
	uint8_t *checksum = p + h.ip + 10;
	pando_set_be16(checksum,
	    pando_checksum_update(pando_be16(checksum), before, pando_be16(p + h.ip + 8)));
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("nat", struct state, process_packet, configure, 1);
