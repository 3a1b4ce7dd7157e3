/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flowlet rule: which unit serves a flowlet, and when one more unit is needed at once. It is compiled into the
 * kernel program (bpf/flowlet.bpf.c) and into the Rust runtime and simulator (nf/assign), so it calls nothing, has no
 * clock and no branch inside its loop over the units. Times are nanoseconds of one monotonic clock.
 *
 * SNF (§4.2, §5.2) packs a flowlet into the fullest unit with room, plus λ where its state already is. What is here
 * keeps the two questions of that rule apart: *which* unit is the one where the flowlet would be served first, with
 * the wait for its state counted in; *how many* units there are is decided by user space every millisecond, and here
 * only when even the least loaded unit has a queue.
 */
#ifndef ASSIGN_H
#define ASSIGN_H

#include <linux/types.h>

#define ASSIGN_UNITS 64
#define ASSIGN_NONE 0xffff
#define ASSIGN_TARGETS_MAX 3
/* Keeps the compiler from turning arithmetic back into a branch: the verifier would follow 2^64 paths. */
#define ASSIGN_OPAQUE(x) __asm__ volatile("" : "+r"(x))

#ifndef inlined
#define inlined static inline __attribute__((always_inline))
#endif

/* What user space sets; constant between two of its ticks. */
struct assign_config {
	__u64 gap_ns;        /* T: a longer silence ends a flowlet */
	__u64 pull_ns;       /* what fetching state from another unit costs */
	__u64 stick_ns;      /* how much sooner another unit must be to be worth a move */
	__u64 crowded_ns;    /* others delay a flow by more than this: its place in the queue does not hold it back */
	__u64 grow_ns;       /* the least backlog that asks for one more unit */
	__u64 grow_every_ns; /* at most one more unit in this time, while there are few */
	__u64 window_ns;     /* of the demand of a flow */
	__u32 size_bytes;    /* B: more than this starts a new flowlet; 0: no limit */
	__u32 packet_ns;     /* cost of a packet of no bytes on a unit */
	__u32 kib_ns;        /* cost of 1024 bytes on a unit */
	__u32 targets;       /* K: how many units the state is pushed to, up to ASSIGN_TARGETS_MAX */
	__u32 pool;          /* units that may be used: ids 0 … pool-1, up to ASSIGN_UNITS */
	__u32 pad;
};

/* What is known of the units. User space writes accepting and, once a tick, the true queues. */
struct assign_units {
	__u64 finish[ASSIGN_UNITS]; /* when the unit would be done with all that it was given */
	__u64 accepting;            /* bit i: unit i takes new flowlets */
	__u64 grown;                /* when the last unit was added here */
	__u64 bytes;                /* all that was assigned, ever: the demand, for user space */
};

/* What is known of a flow. All zero but unit = previous = ASSIGN_NONE is a new flow. */
struct assign_flow {
	__u64 seen;    /* arrival of its last packet */
	__u64 finish;  /* when that packet will be done: its place in the unit's queue */
	__u64 alone;   /* when it would be done if the flow had the unit for itself */
	__u64 ready;   /* until then its state is on the way to its unit */
	__u64 clock;   /* packets so far: the logical clock of SNF §5.3 */
	__u64 targets; /* units that its state is pushed to when it falls silent */
	__u64 window;  /* when the current window of its demand began */
	__u32 window_bytes;
	__u32 demand_bytes; /* per window, moving average with a weight of 1/4 */
	__u32 bytes;        /* of this flowlet */
	__u32 epoch;        /* units that it has had, this one included */
	__u32 position;     /* packets since this epoch began */
	__u16 unit, previous; /* of this epoch and of the one before */
};

enum assign_result {
	ASSIGN_FLOWLET = 1, /* the packet begins a flowlet */
	ASSIGN_MOVED = 2,   /* … on another unit than the last one */
	ASSIGN_GREW = 4,    /* … and one more unit was taken into service */
};

inlined __u64 assign_max(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/* assign_left is the time from now to then, 0 if then is past. */
inlined __u64 assign_left(__u64 then, __u64 now)
{
	return then > now ? then - now : 0;
}

/* assign_cost is how long a unit is busy with a packet. */
inlined __u64 assign_cost(const struct assign_config *c, __u32 len)
{
	return c->packet_ns + (((__u64)len * c->kib_ns) >> 10);
}

/* assign_begins says whether the packet begins a flowlet. While state is on the way none begins: it would have to
 * travel on before it has arrived. */
inlined int assign_begins(const struct assign_config *c, const struct assign_units *u, const struct assign_flow *f,
			  __u64 now, __u32 len)
{
	if (f->unit >= ASSIGN_UNITS)
		return 1;
	if (f->ready > now)
		return 0;
	return now - f->seen > c->gap_ns || (c->size_bytes && f->bytes + len > c->size_bytes) ||
	       !(u->accepting >> (f->unit & 63) & 1);
}

/* assign_replicas are the units that hold the flow's state besides its own: pushed after half a gap of silence. */
inlined __u64 assign_replicas(const struct assign_config *c, const struct assign_flow *f, __u64 now)
{
	return assign_max(f->finish, f->seen) + (c->gap_ns >> 1) + c->pull_ns <= now ? f->targets : 0;
}

/* assign_tail is how long the flow's own packets will keep its state where it is. When others delay the flow much, its
 * place in the queue says where the queue is long, not how much of it is the flow's: then only its own work counts,
 * or a large flow stays on an overloaded unit for ever. */
inlined __u64 assign_tail(const struct assign_config *c, const struct assign_flow *f, __u64 now)
{
	return assign_left(f->finish > f->alone + c->crowded_ns ? f->alone : f->finish, now);
}

/* A choice packs the score and, below it, the rank that settles a tie: the current unit, a replica, the lowest id. */
#define ASSIGN_RANK_BITS 8
#define ASSIGN_WORST (~0ull >> 1)

struct assign_choice {
	__u64 best;                        /* packed */
	__u64 targets[ASSIGN_TARGETS_MAX]; /* the next best, packed, in order */
	__u64 least;                       /* backlog */
};

/* assign_insert keeps the least of what it has seen in order; sorted by arithmetic, not by branches. */
inlined void assign_insert(struct assign_choice *best, __u64 score)
{
	__u64 slot, less, swap;

#define ASSIGN_SLOT(field)                       \
	slot = best->field;                      \
	less = -((score - slot) >> 63);          \
	ASSIGN_OPAQUE(less);                     \
	swap = (score ^ slot) & less;            \
	best->field = slot ^ swap;               \
	score ^= swap
	ASSIGN_SLOT(best);
	ASSIGN_SLOT(targets[0]);
	ASSIGN_SLOT(targets[1]);
	ASSIGN_SLOT(targets[2]);
#undef ASSIGN_SLOT
}

/* assign_choose scores every accepting unit. A new flow has no state: every unit costs it the queue there. For a known
 * one, a unit without its state costs at least the wait for it, and stick_ns on top. */
inlined struct assign_choice assign_choose(const struct assign_config *c, const struct assign_units *u,
					   const struct assign_flow *f, __u64 now)
{
	struct assign_choice best = {ASSIGN_WORST, {ASSIGN_WORST, ASSIGN_WORST, ASSIGN_WORST}, ASSIGN_WORST};
	__u64 known = f->unit < ASSIGN_UNITS, own = known << (f->unit & 63), held = assign_replicas(c, f, now);
	__u64 wait = assign_tail(c, f, now) + c->pull_ns, stick = c->stick_ns;

	for (__u32 i = 0; i < ASSIGN_UNITS; i++) {
		__u64 out = (u->accepting >> i & 1) - 1; /* all ones: takes none */
		__u64 here = own >> i & 1, there = held >> i & 1;
		__u64 far = -(known & ~(here | there) & 1); /* all ones: the state has to come */
		__u64 backlog = u->finish[i] - now, late;

		late = -(backlog >> 63);
		ASSIGN_OPAQUE(late);
		backlog &= ~late;
		out >>= 1;

		__u64 more = wait - backlog;
		__u64 add = -(more >> 63);
		ASSIGN_OPAQUE(add);
		__u64 score = backlog + (((more & ~add) + stick) & far);
		__u64 rank = ((here ^ 1) & (there ^ 1)) << 6;
		rank = (rank + i + 1) & (here - 1);

		backlog = (backlog & ~out) | out;
		__u64 less = -((backlog - best.least) >> 63);
		ASSIGN_OPAQUE(less);
		best.least ^= (best.least ^ backlog) & less;
		assign_insert(&best, ((score << ASSIGN_RANK_BITS | rank) & ~out) | out);
	}
	return best;
}

/* assign_id is the unit of a packed choice. */
inlined __u32 assign_id(const struct assign_flow *f, __u64 choice)
{
	__u64 rank = choice & ((1 << ASSIGN_RANK_BITS) - 1);

	return rank ? (rank - 1) & 63 : f->unit & 63;
}

/* assign_grow takes one more unit into service if even the least loaded one has a queue. It looks at the least backlog
 * and not at the chosen unit's: a flow that stays with its state on a long queue is no sign of too few units. */
inlined int assign_grow(const struct assign_config *c, struct assign_units *u, __u64 least, __u64 now)
{
	__u64 next = ~u->accepting & (u->accepting + 1);

	if (least <= c->grow_ns || now - u->grown < c->grow_every_ns || !next)
		return 0;
	if (c->pool < ASSIGN_UNITS && next >> (c->pool & 63))
		return 0;
	u->accepting |= next;
	u->grown = now;
	return ASSIGN_GREW;
}

/* assign_measure keeps the flow's demand: bytes per window, never the rate inside a burst. */
inlined void assign_measure(const struct assign_config *c, struct assign_flow *f, __u64 now, __u32 len)
{
	__u64 since = now - f->window;

	if (since >= c->window_ns) {
		f->demand_bytes = since >= 8 * c->window_ns ? 0 : f->demand_bytes - (f->demand_bytes >> 2) + (f->window_bytes >> 2);
		f->window = now;
		f->window_bytes = 0;
	}
	f->window_bytes += len;
}

/* assign_move gives the flow to a unit. Its state comes with it, at once where a replica is, else after its own tail
 * and a pull. */
inlined int assign_move(const struct assign_config *c, struct assign_flow *f, __u32 unit, __u64 now)
{
	int moved = 0;

	if (f->unit < ASSIGN_UNITS && f->unit != unit) {
		int held = assign_replicas(c, f, now) >> (unit & 63) & 1;
		f->ready = held ? now : assign_max(f->finish, now) + c->pull_ns;
		moved = ASSIGN_MOVED;
	}
	f->bytes = 0;
	if (f->unit != unit) {
		f->previous = f->unit;
		f->unit = unit;
		f->epoch++;
		f->position = 0;
	}
	return moved | ASSIGN_FLOWLET;
}

/* assign_packet decides the unit of a packet and accounts for it; the answer is f->unit. It returns assign_result. If
 * no unit accepts, a known flow stays where it is and a new one is left with ASSIGN_NONE. */
inlined int assign_packet(const struct assign_config *c, struct assign_units *u, struct assign_flow *f, __u64 now,
			  __u32 len)
{
	__u64 cost = assign_cost(c, len);
	int result = 0;

	u->bytes += len;
	if (assign_begins(c, u, f, now, len)) {
		struct assign_choice best = assign_choose(c, u, f, now);
		__u64 targets = 0;

		if (best.best != ASSIGN_WORST) {
			for (__u32 k = 0; k < ASSIGN_TARGETS_MAX; k++)
				if (k < c->targets && best.targets[k] != ASSIGN_WORST)
					targets |= 1ull << assign_id(f, best.targets[k]);
			result = assign_move(c, f, assign_id(f, best.best), now) | assign_grow(c, u, best.least, now);
			f->targets = targets & ~(1ull << (f->unit & 63));
		}
	}
	if (f->unit >= ASSIGN_UNITS)
		return 0;

	__u32 at = f->unit;

	ASSIGN_OPAQUE(at); /* or the compiler sees that the mask changes nothing, and the verifier does not */
	at &= 63;
	u->finish[at] = assign_max(u->finish[at], now) + cost;
	f->finish = assign_max(u->finish[at], assign_max(f->ready, now) + cost);
	f->alone = assign_max(assign_max(f->alone, f->ready), now) + cost;
	assign_measure(c, f, now, len);
	f->seen = now;
	f->bytes += len;
	f->clock++;
	f->position++;
	return result;
}

#endif
