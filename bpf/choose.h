/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The choice of an endpoint for a new flow, by the policy of its service. */
#ifndef CHOOSE_H
#define CHOOSE_H

#include "tunnel.h"

#define DRAWS 8 /* from the table, at most: until two of them are not excluded */
#define DRAWS_MAX 32 /* while all of them are excluded: at most half of the endpoints are */
#define LIVE_RATIO 8
#define SCORE_IDLE (1 << 16) /* a sixteenth, so that live flows count where all are idle */

/* pick returns a flow's endpoint from the current or the previous table, -1 if it has none. */
inlined int pick(__u32 service, __u32 hashed, int before)
{
	struct service *s = bpf_map_lookup_elem(&services, &service);
	if (!s)
		return -1;
	__u32 which = (*(volatile __u32 *)&s->active ^ before) & 1;
	if (!s->endpoints[which])
		return -1;
	__u32 bucket = hashed & s->places[which].mask;
	__u32 at = s->places[which].chunk + bucket / CHUNK_BUCKETS, n = at / SLAB_CHUNKS;
	void *slab = bpf_map_lookup_elem(&slabs, &n);
	if (!slab)
		return -1;
	n = at % SLAB_CHUNKS;
	struct chunk *c = bpf_map_lookup_elem(slab, &n);
	return c ? c->endpoint[bucket % CHUNK_BUCKETS] : -1;
}

/* count_live counts the live flows of an endpoint. */
inlined void count_live(__u32 slot, __s32 n)
{
	__s32 *flows = bpf_map_lookup_elem(&live, &slot);

	if (flows)
		__sync_fetch_and_add(flows, n);
}

/* live_of returns the live flows of an endpoint. A correction may take them below zero for a
 * moment. */
inlined __u32 live_of(__u32 slot)
{
	__s32 *flows = bpf_map_lookup_elem(&live, &slot);

	return flows && *flows > 0 ? *flows : 0;
}

inlined __u32 score_of(__u32 slot)
{
	__u32 *score = bpf_map_lookup_elem(&scores, &slot);

	return score ? *score : 0;
}

struct draw {
	__u32 service, by, hashed;
	__u32 score, live; /* of the best candidate so far */
	int best, good; /* good: candidates that are not excluded */
};

/* better compares a candidate with the best one so far. Measurements are a tenth of a second old,
 * and an endpoint without free resources looks the same with one waiting flow and with a thousand.
 * So a score counts as often as the endpoint has live flows, and the one to come. More flows than
 * LIVE_RATIO times those of the other count no more: they may be idle. */
inlined int better(const struct draw *d, __u32 score, __u32 live)
{
	__u64 mine = live + 1, best = d->live + 1;

	if ((score ^ d->score) & EXCLUDED)
		return score < d->score;
	if (mine > LIVE_RATIO * best)
		mine = LIVE_RATIO * best;
	if (best > LIVE_RATIO * mine)
		best = LIVE_RATIO * mine;
	if (d->by == BY_SCORE) {
		mine *= (score & ~EXCLUDED) + SCORE_IDLE;
		best *= (d->score & ~EXCLUDED) + SCORE_IDLE;
	}
	return mine < best;
}

/* again draws one candidate from the table. Weights act here: a heavy endpoint is drawn more often,
 * and an endpoint that drains never. */
static long again(__u32 n, struct draw *d)
{
	__u32 h = d->hashed ^ n * 0x9e3779b9;

	if (n >= DRAWS && d->good)
		return 1;
	h = (h ^ h >> 16) * 0x85ebca6b; /* the table takes the low bits */
	h = (h ^ h >> 13) * 0xc2b2ae35;
	int at = pick(d->service, n ? h ^ h >> 16 : d->hashed, 0);
	if (at < 0)
		return 1;
	if (at == d->best)
		return 0;
	__u32 score = d->by == BY_SCORE ? score_of(at) : 0, live = live_of(at);
	if (d->best < 0 || better(d, score, live)) {
		d->best = at;
		d->score = score;
		d->live = live;
	}
	if (score < EXCLUDED)
		d->good++;
	return d->good > 1;
}

/* in_turn takes the next endpoint of the rank. */
inlined int in_turn(__u32 service, const struct policy *p)
{
	__u32 which = *(volatile __u32 *)&p->active & 1, n = 2 * service + which;
	__u32 members = p->members[which];
	struct turn *turn = bpf_map_lookup_elem(&turns, &n);
	struct rank_key k = {.service = service, .which = which};

	if (!turn || !members)
		return -1;
	bpf_spin_lock(&turn->lock);
	__u32 at = turn->at++;
	bpf_spin_unlock(&turn->lock);
	at %= members;
	k.chunk = at / CHUNK_BUCKETS;
	struct chunk *c = bpf_map_lookup_elem(&ranks, &k);
	return c ? c->endpoint[at % CHUNK_BUCKETS] : -1;
}

/* choose returns the endpoint of a new flow, -1 if the service has none. */
apart int choose(__u32 service, __u32 hashed)
{
	struct policy *p = bpf_map_lookup_elem(&policies, &service);
	struct draw d = {.service = service, .hashed = hashed, .best = -1};

	if (!p || p->by == BY_HASH || p->by == BY_CLIENT || bpf_ktime_get_coarse_ns() >= p->until)
		return pick(service, hashed, 0);
	if (p->by == BY_ROUND_ROBIN || p->by == BY_HAVEN) {
		int at = in_turn(service, p);
		return at < 0 ? pick(service, hashed, 0) : at;
	}
	d.by = p->by;
	bpf_loop(DRAWS_MAX, again, &d, 0);
	return d.best;
}

#endif
