/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers the packets of each flow. It writes the number of the state to the first four bytes of a
 * UDP payload.
 */
#include <pando_nf.h>

struct state {
	uint32_t packets;
};

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	uint8_t *p = pando_data(packet);
	struct state s = {0};
	pando_get(ctx, &s);
	s.packets++;
	pando_put(ctx, &s);
	for (int i = 0; i < 4; i++)
		p[42 + i] = (uint8_t)(s.packets >> (24 - 8 * i));
	return PANDO_PASS;
}

PANDO_FUNCTION("count", struct state, process_packet);
