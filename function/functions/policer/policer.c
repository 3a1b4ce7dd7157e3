/* SPDX-License-Identifier: Apache-2.0
 *
 * QoS traffic policer (SNF §8): a token bucket per flow and direction. It drops the excess and
 * queues nothing. Time comes from the packets, so the same packets always get the same verdicts.
 *
 * Configuration:
 *     rate=1000000     bytes per second that a flow may send in one direction (needed)
 *     burst=15000      bytes that it may send at once (default 15000)
 */
#include <pando_nf.h>

struct bucket {
	uint64_t time_ns; /* time up to which tokens were added */
	uint64_t tokens;  /* in billionths of a byte, so that each nanosecond counts */
};

struct state {
	struct bucket buckets[2]; /* by direction */
};

#define BYTE 1000000000ull

static uint64_t rate, burst;

static int configure(const uint8_t *config, uint32_t length)
{
	int bad = 0;
	rate = pando_config_number(config, length, "rate", 0, &bad);
	burst = pando_config_number(config, length, "burst", 15000, &bad);
	if (bad || rate == 0 || rate > 100000000000ull || burst == 0 || burst > 1000000000ull)
		return 1;
	burst *= BYTE;
	return 0;
}

/* Adds the tokens for the time since the last packet, up to a full bucket. */
static void refill(struct bucket *b, uint64_t now_ns)
{
	uint64_t passed = now_ns > b->time_ns ? now_ns - b->time_ns : 0;
	uint64_t room = burst - b->tokens;
	b->tokens += passed > room / rate ? room : passed * rate;
	b->time_ns += passed;
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct state *s = pando_state(ctx);
	if (!(packet->flags & PANDO_STATE_VALID)) {
		struct bucket full = {packet->time_ns, burst};
		s->buckets[0] = s->buckets[1] = full;
	}
	struct bucket *b = &s->buckets[packet->flags & PANDO_REPLY ? 1 : 0];
	refill(b, packet->time_ns);
	pando_changed(ctx);
	uint64_t cost = packet->length * BYTE;
	if (b->tokens < (cost < burst ? cost : burst))
		return PANDO_DROP;
	/* An aggregate of packets may exceed the bucket. Its time then lies ahead until the tokens are
	 * paid. */
	uint64_t owed = cost > b->tokens ? cost - b->tokens : 0;
	b->time_ns += (owed + rate - 1) / rate;
	b->tokens -= cost - owed;
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("policer", struct state, process_packet, configure, 0);
