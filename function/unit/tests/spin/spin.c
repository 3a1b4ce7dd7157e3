/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes each packet after a fixed amount of work, about a tenth of a millisecond.
 */
#include <pando_nf.h>

struct state {
	uint64_t mixed;
};

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct state s = {packet->length};
	for (uint32_t turn = 0; turn < 60000; turn++)
		s.mixed = s.mixed * 0x9e3779b97f4a7c15ull ^ turn;
	pando_put(ctx, &s);
	return PANDO_PASS;
}

PANDO_FUNCTION("spin", struct state, process_packet);
