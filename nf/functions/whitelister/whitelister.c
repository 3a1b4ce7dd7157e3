/* SPDX-License-Identifier: Apache-2.0
 *
 * UDP whitelister (SNF §8, after Bohatei): UDP from outside passes only as the answer to a request from inside, for as
 * long as the flow is remembered. That ends reflection attacks. All but UDP passes.
 *
 * Configuration:
 *     inside=10.0.0.0/8     who may ask (needed)
 */
#include <pando_nf.h>

struct state {
	uint32_t asked;
	uint32_t reserved;
};

static uint32_t inside_network, inside_mask;

static int configure(const uint8_t *config, uint32_t length)
{
	int bad = 0;
	uint32_t size, bits = 0;
	const uint8_t *value = pando_config_value(config, length, "inside", &size);
	if (!value)
		return 1;
	const uint8_t *end = value + size;
	inside_network = pando_config_ipv4(&value, end, &bad);
	if (bad || value >= end || *value++ != '/' || value >= end)
		return 2;
	for (; value < end; value++)
		bits = *value >= '0' && *value <= '9' && bits < 100 ? bits * 10 + (*value - '0') : 100;
	if (bits > 32)
		return 2;
	inside_mask = bits ? ~0u << (32 - bits) : 0;
	inside_network &= inside_mask;
	return 0;
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct pando_headers h;
	uint8_t *p = pando_data(packet);
	if (!pando_parse(p, packet->length, &h) || h.version != 4 || h.protocol != 17)
		return PANDO_PASS;
	if (packet->flags & PANDO_STATE_VALID)
		return PANDO_PASS;
	if ((pando_be32(p + h.ip + 12) & inside_mask) != inside_network)
		return PANDO_DROP;
	struct state s = {1, 0};
	pando_put(ctx, &s);
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("whitelister", struct state, process_packet, configure, 0);
