/* SPDX-License-Identifier: Apache-2.0
 *
 * Layer-4 load balancer (SNF §8). Rendezvous hashing of its two ends assigns a new flow to a
 * server, which the flow keeps. Adding or removing a server moves only the flows that must move.
 *
 * Configuration:
 *     service=192.0.2.10            the address that clients use (needed)
 *     servers=10.0.0.2,10.0.0.3     at most 64 (needed)
 */
#include <pando_nf.h>

#define SERVERS_MAX 64

struct state {
	uint32_t server;
	uint32_t reserved;
};

static uint32_t service, servers[SERVERS_MAX], server_count;

static int configure(const uint8_t *config, uint32_t length)
{
	int bad = 0;
	uint32_t size;
	const uint8_t *value = pando_config_value(config, length, "service", &size);
	if (!value)
		return 1;
	service = pando_config_ipv4(&value, value + size, &bad);
	value = pando_config_value(config, length, "servers", &size);
	if (!value)
		return 2;
	const uint8_t *end = value + size;
	for (server_count = 0; !bad && value < end; server_count++) {
		if (server_count == SERVERS_MAX)
			return 3;
		servers[server_count] = pando_config_ipv4(&value, end, &bad);
		if (value < end && *value++ != ',')
			bad = 1;
	}
	return bad || server_count == 0 ? 2 : 0;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint32_t pick(uint32_t client, uint16_t port)
{
	uint64_t flow = mix((uint64_t)client << 16 | port), best = 0;
	uint32_t server = servers[0];
	for (uint32_t i = 0; i < server_count; i++) {
		uint64_t score = mix(flow ^ servers[i] * 0x9e3779b97f4a7c15ull);
		if (score > best) {
			best = score;
			server = servers[i];
		}
	}
	return server;
}

/* Replaces the address at an offset, and updates the checksums of IP and of the transport. */
static void rewrite(uint8_t *p, const struct pando_headers *h, uint32_t at, uint32_t address)
{
	uint8_t *ip_checksum = p + h->ip + 10, *checksum = p + h->transport + (h->protocol == 6 ? 16 : 6);
	for (int half = 0; half < 2; half++, at += 2, address <<= 16) {
		uint16_t before = pando_be16(p + at), after = (uint16_t)(address >> 16);
		pando_set_be16(ip_checksum, pando_checksum_update(pando_be16(ip_checksum), before, after));
		uint16_t sum = pando_be16(checksum);
		if (h->protocol == 6 || sum) {
			sum = pando_checksum_update(sum, before, after);
			pando_set_be16(checksum, h->protocol == 17 && !sum ? 0xffff : sum);
		}
		pando_set_be16(p + at, after);
	}
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct pando_headers h;
	uint8_t *p = pando_data(packet);
	struct state s;
	if (!pando_parse(p, packet->length, &h) || h.version != 4 || !pando_has_ports(&h))
		return PANDO_DROP;
	if (packet->flags & PANDO_TRANSLATED) { /* from the server: send as the service */
		if (!pando_get(ctx, &s))
			return PANDO_DROP;
		rewrite(p, &h, h.ip + 12, service);
		return PANDO_PASS;
	}
	if (pando_be32(p + h.ip + 16) != service)
		return PANDO_DROP;
	if (!pando_get(ctx, &s)) {
		s = (struct state){pick(pando_be32(p + h.ip + 12), pando_be16(p + h.transport)), 0};
		pando_put(ctx, &s);
		pando_alias(ctx);
	}
	rewrite(p, &h, h.ip + 16, s.server);
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("balancer", struct state, process_packet, configure, 0);
