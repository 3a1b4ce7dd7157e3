#include <pando_nf.h>

/* What is kept of each flow; it moves with the flow from unit to unit. */
struct state {
	uint64_t packets;
};

/* The first hundred packets of a flow pass. */
static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct state s = {0};
	struct pando_headers headers;

	if (!pando_parse(pando_data(packet), packet->length, &headers))
		return PANDO_DROP;
	pando_get(ctx, &s);
	s.packets++;
	pando_put(ctx, &s);
	return s.packets <= 100 ? PANDO_PASS : PANDO_DROP;
}

PANDO_FUNCTION("@NAME@", struct state, process_packet);
