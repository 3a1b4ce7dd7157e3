/* SPDX-License-Identifier: Apache-2.0
 *
 * Layer-4 load balancer (SNF §8). Rendezvous hashing of its two ends assigns a new flow to a
 * server, which the flow keeps. Adding or removing a server moves only the flows that must move.
 * A ping is a flow too, and ICMP errors about a flow reach its server.
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

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct pando_headers h, quoted;
	uint8_t *p = pando_data(packet);
	struct state s;
	if (!pando_parse(p, packet->length, &h) || h.version != 4)
		return PANDO_DROP;
	/* The quoted packet went the other way: its source is the error's destination. */
	uint32_t error_sum = pando_quoted(p, &h, &quoted) ? h.transport + 2 : 0;
	if (!error_sum && !pando_has_ports(&h) && !pando_is_echo(p, &h))
		return PANDO_DROP;
	if (packet->flags & PANDO_TRANSLATED) { /* from the server: send as the service */
		if (!pando_get(ctx, &s))
			return PANDO_DROP;
		/* An error may be a router's, before the server. */
		if (!error_sum || pando_be32(p + h.ip + 12) == s.server)
			pando_rewrite_ipv4(p, &h, 0, service, -1, 0);
		if (error_sum)
			pando_rewrite_ipv4(p, &quoted, 1, service, -1, error_sum);
		return PANDO_PASS;
	}
	if (pando_be32(p + h.ip + 16) != service)
		return PANDO_DROP;
	if (!pando_get(ctx, &s)) {
		if (error_sum)
			return PANDO_DROP;
		uint32_t port_at = h.transport + (pando_has_ports(&h) ? 0 : 4);
		s = (struct state){pick(pando_be32(p + h.ip + 12), pando_be16(p + port_at)), 0};
		pando_put(ctx, &s);
		pando_alias(ctx);
	}
	pando_rewrite_ipv4(p, &h, 1, s.server, -1, 0);
	if (error_sum)
		pando_rewrite_ipv4(p, &quoted, 0, s.server, -1, error_sum);
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("balancer", struct state, process_packet, configure, 0);
