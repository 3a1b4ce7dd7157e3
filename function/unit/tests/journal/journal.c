/* SPDX-License-Identifier: Apache-2.0
 *
 * Records the packets of each flow's state: the number in the source of the Ethernet header, and
 * the time.
 */
#include <pando_nf.h>

#define ENTRIES 340

struct entry {
	uint32_t number, time[2];
};

struct state {
	uint32_t count, reserved;
	struct entry entries[ENTRIES];
};

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct state *s = pando_state(ctx);
	if (s->count < ENTRIES)
		s->entries[s->count] =
		    (struct entry){pando_be32(pando_data(packet) + 8),
				   {(uint32_t)packet->time_ns, (uint32_t)(packet->time_ns >> 32)}};
	s->count++;
	pando_changed(ctx);
	return PANDO_PASS;
}

PANDO_FUNCTION("journal", struct state, process_packet);
