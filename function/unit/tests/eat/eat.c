/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes packets on. If the fifth byte after the UDP header is 0xff, it fills 40 MiB of memory in
 * one instruction, so the kernel ends the unit before any time limit does.
 */
#include <pando_nf.h>

struct state {
	uint32_t packets;
};

static uint8_t pantry[40 << 20];

__attribute__((target("bulk-memory"))) static void eat(uint8_t what)
{
	__builtin_memset(pantry, what, sizeof(pantry));
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	uint8_t *p = pando_data(packet);
	struct state s = {0};
	pando_get(ctx, &s);
	s.packets++;
	pando_put(ctx, &s);
	if (p[46] == 0xff)
		eat(p[46]);
	return pantry[p[46]] == 1 ? PANDO_DROP : PANDO_PASS;
}

PANDO_FUNCTION("eat", struct state, process_packet);
