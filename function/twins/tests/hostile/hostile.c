/* A test function: counts the packets of each flow and obeys the first byte of a UDP payload. */
#include <pando_nf.h>

struct state {
	uint64_t packets;
	uint64_t sum;
};

static volatile uint32_t sink;

static uint32_t recurse(uint32_t depth)
{
	volatile uint8_t frame[256];
	frame[depth & 255] = (uint8_t)depth;
	return depth == 0 ? frame[0] : recurse(depth - 1) + frame[depth & 255];
}

static void misbehave(uint8_t how)
{
	switch (how) {
	case 'L':
		for (;;)
			sink++;
	case 'R':
		sink = recurse(1u << 30);
		break;
	case 'O':
		*(volatile uint32_t *)0xfffffff0u = 1;
		break;
	case 'U':
		__builtin_trap();
	case 'G':
		while (__builtin_wasm_memory_grow(0, 16) != (unsigned long)-1)
			sink++;
		__builtin_trap();
	}
}

/* Sets impossible lengths of a packet. */
static void resize(struct pando_packet *packet, uint8_t how)
{
	if (how == 'S')
		packet->length = 13;
	if (how == 'H')
		packet->length = 0xffffffffu;
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct pando_headers h;
	const uint8_t *p = pando_data(packet);
	struct state s = {0, 0};
	pando_get(ctx, &s);
	s.packets++;
	if (pando_parse(p, packet->length, &h) && h.payload < h.end) {
		s.sum = s.sum * 31 + p[h.end - 1];
		pando_put(ctx, &s);
		misbehave(p[h.payload]);
		resize(packet, p[h.payload]);
	}
	return PANDO_PASS;
}

PANDO_FUNCTION("hostile", struct state, process_packet);
