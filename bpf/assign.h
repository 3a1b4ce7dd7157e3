/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flowlet rule chooses the unit for each flowlet and decides when to add a unit at once. The
 * kernel program (bpf/flowlet.bpf.c) and the Rust runtime and simulator (function/assign) compile
 * it. It calls nothing, has no clock, and no branch inside its loop over the units. Times are
 * nanoseconds of one monotonic clock.
 *
 * SNF (§4.2, §5.2) packs a flowlet into the fullest unit with room, plus λ where its state is. Here
 * *which unit* is the one that serves the flowlet first, including the wait for its state. *How
 * many units*: user space decides every ms; this rule adds one if even the shortest queue is long.
 */
#ifndef ASSIGN_H
#define ASSIGN_H

#include <linux/types.h>

#define ASSIGN_UNITS 64
#define ASSIGN_NONE 0xffff
#define ASSIGN_TARGETS_MAX 3
#define ASSIGN_NO_TARGET 0xff
#define ASSIGN_GROUPS 4 /* unit i is in group i % 4; targets are of different groups */
/* Hides a value from the compiler. Otherwise it restores branches: 2^64 paths for the verifier. */
#define ASSIGN_OPAQUE(x) __asm__ volatile("" : "+r"(x))

/* Different compilers build the kernel program and the others. */
#ifdef __clang__
#define ASSIGN_UNROLL _Pragma("unroll")
#else
#define ASSIGN_UNROLL _Pragma("GCC unroll 64")
#endif

#ifndef inlined
#define inlined static inline __attribute__((always_inline))
#endif

/* Set by user space; constant between two of its ticks. */
struct assign_config {
	__u64 gap_ns;        /* T: a longer silence ends a flowlet */
	__u64 pull_ns;       /* cost of fetching state from another unit */
	__u64 stick_ns;      /* a move must gain more than this */
	__u64 crowded_ns;    /* others delay a flow by more than this: the flow's queue place is ignored */
	__u64 grow_ns;       /* the smallest backlog that asks for one more unit */
	__u64 grow_every_ns; /* at most one unit is added in this time while there are few units */
	__u64 window_ns;     /* window of a flow's demand */
	__u32 size_bytes;    /* B: more than this starts a new flowlet; 0: no limit */
	__u32 packet_ns;     /* cost of an empty packet on a unit */
	__u32 kib_ns;        /* cost of 1024 bytes on a unit */
	__u32 targets;       /* K: number of units that receive pushed state, at most ASSIGN_TARGETS_MAX */
};

/* The state of the units. User space writes accepting, ready and, once a tick, the true queues. */
struct assign_units {
	__u64 finish[ASSIGN_UNITS]; /* when the unit finishes its assigned work */
	__u64 accepting;            /* bit i: unit i takes new flowlets */
	__u64 ready;                /* bit i: unit i can enter service at once */
	__u64 grown;                /* when this rule last added a unit */
	__u64 bytes;                /* bytes assigned since the start: the demand, for user space */
};

/* The state of a flow. A new flow is all zero except unit = previous = ASSIGN_NONE. */
struct assign_flow {
	__u64 seen;    /* arrival of its last packet */
	__u64 finish;  /* when that packet finishes: its place in the unit's queue */
	__u64 alone;   /* when that packet would finish if the flow were alone on the unit */
	__u64 ready;   /* arrival of the flow's state at its unit */
	__u64 clock;   /* packets so far: the logical clock of SNF §5.3 */
	__u64 window;  /* start of the current demand window */
	__u32 window_bytes;
	__u32 demand_bytes; /* per window, moving average with a weight of 1/4 */
	__u32 bytes;        /* of this flowlet */
	__u32 epoch;        /* number of units so far, including this one */
	__u32 position;     /* packets since this epoch began */
	__u16 unit, previous; /* of this epoch and of the one before */
	__u8 target[ASSIGN_TARGETS_MAX]; /* units that receive its state when it pauses */
	__u8 pad[5];
};

enum assign_result {
	ASSIGN_FLOWLET = 1, /* the packet begins a flowlet */
	ASSIGN_MOVED = 2,   /* the flowlet begins on another unit than the last one */
	ASSIGN_GREW = 4,    /* the rule added a unit */
};

#define ASSIGN_WORST (~0ull >> 1)

/* assign_sign is all ones if the top bit is set, else 0. The choice of a unit has no branches. */
inlined __u64 assign_sign(__u64 x)
{
	__s64 sign = (__s64)x >> 63;

	ASSIGN_OPAQUE(sign);
	return sign;
}

/* assign_less is all ones if a < b, else 0. Both must be below 2^63. */
inlined __u64 assign_less(__u64 a, __u64 b)
{
	return assign_sign(a - b);
}

inlined __u64 assign_min(__u64 a, __u64 b)
{
	return b ^ ((a ^ b) & assign_less(a, b));
}

inlined __u64 assign_max(__u64 a, __u64 b)
{
	return a ^ ((a ^ b) & assign_less(a, b));
}

/* assign_left returns the time from now to then, or 0 if then is past. */
inlined __u64 assign_left(__u64 then, __u64 now)
{
	return (then - now) & ~assign_sign(then - now);
}

/* assign_cost returns the time a unit needs for a packet. */
inlined __u64 assign_cost(const struct assign_config *c, __u32 len)
{
	return c->packet_ns + (((__u64)len * c->kib_ns) >> 10);
}

/* assign_begins returns 1 if the packet begins a flowlet. No flowlet begins
 * while state moves: the state would have to move again before it has arrived. */
inlined int assign_begins(const struct assign_config *c, const struct assign_units *u,
			  const struct assign_flow *f, __u64 now, __u32 len)
{
	if (f->unit >= ASSIGN_UNITS)
		return 1;
	if (f->ready > now)
		return 0;
	return now - f->seen > c->gap_ns || (c->size_bytes && f->bytes + len > c->size_bytes) ||
	       !(u->accepting >> (f->unit & 63) & 1);
}

/* assign_targets returns the set of the flow's targets: bit i is unit i. */
inlined __u64 assign_targets(const struct assign_flow *f)
{
	__u64 set = 0;

	ASSIGN_UNROLL
	for (int k = 0; k < ASSIGN_TARGETS_MAX; k++)
		set |= (assign_less(f->target[k], ASSIGN_UNITS) & 1) << (f->target[k] & 63);
	return set;
}

/* assign_replicated is all ones if the targets hold the state (pushed after half a silent gap). */
inlined __u64 assign_replicated(const struct assign_config *c, const struct assign_flow *f,
				__u64 now)
{
	return ~assign_less(now, assign_max(f->finish, f->seen) + (c->gap_ns >> 1) + c->pull_ns);
}

/* assign_tail returns how long the flow's own packets keep its state on this
 * unit. If others delay the flow by more than crowded_ns, only the flow's own
 * work counts. Otherwise a large flow would stay on an overloaded unit forever. */
inlined __u64 assign_tail(const struct assign_config *c, const struct assign_flow *f, __u64 now)
{
	__u64 crowded = assign_less(f->alone + c->crowded_ns, f->finish);

	return assign_left(f->finish ^ ((f->finish ^ f->alone) & crowded), now);
}

/* A candidate packs a score above a tie-break. The tie-break is the
 * class (0 own unit, 1 replica, 2 other unit), then the lowest id. */
#define ASSIGN_CANDIDATE(score, class, id) ((score) << 8 | (class) << 6 | (id))

/* assign_backlog rates one unit by its queue; ASSIGN_WORST if it is invalid or not accepting. */
inlined __u64 assign_backlog(const struct assign_units *u, __u32 id, __u64 class, __u64 now)
{
	__u64 none = ~assign_less(id, ASSIGN_UNITS);
	__u64 backlog, refuses;

	/* or the compiler sees that the mask changes nothing, and the verifier does not */
	ASSIGN_OPAQUE(id);
	id &= ASSIGN_UNITS - 1;
	backlog = u->finish[id] - now;
	refuses = assign_sign(~u->accepting << (63 - id));
	return ASSIGN_CANDIDATE(backlog & ~assign_sign(backlog), class, id) |
	    ((refuses | none) & ASSIGN_WORST);
}

/* assign_least finds the shortest queue of each group as length << 6 | id, or ASSIGN_WORST
 * if no unit accepts. This loop runs over all 64 units, so it is pure arithmetic. */
inlined void assign_least(const struct assign_units *u, __u64 now, __u64 least[ASSIGN_GROUPS])
{
	__u64 refuses = ~u->accepting;

	for (int g = 0; g < ASSIGN_GROUPS; g++)
		least[g] = ASSIGN_WORST;
	for (__u32 i = 0; i < ASSIGN_UNITS; i += ASSIGN_GROUPS) {
		ASSIGN_UNROLL
		for (__u32 g = 0; g < ASSIGN_GROUPS; g++) {
			__u64 backlog = u->finish[i + g] - now;

			backlog = (backlog & ~assign_sign(backlog)) << 6 | (i + g);
			backlog |= assign_sign(refuses << (63 - g - i)) & ASSIGN_WORST;
			least[g] = assign_min(backlog, least[g]);
		}
	}
}

/* assign_best returns the unit that serves the flowlet first. The own unit and its replicas
 * cost their queue. Any other unit costs at least the wait for the state, plus stick_ns. That
 * wait is equal for all, so only each group's shortest queue can win. A new flow has no wait. */
inlined __u64 assign_best(const struct assign_config *c, const struct assign_units *u,
			  const struct assign_flow *f, __u64 now, const __u64 least[ASSIGN_GROUPS])
{
	__u64 known = assign_less(f->unit, ASSIGN_UNITS);
	__u64 stale = ~(known & assign_replicated(c, f, now)) & ASSIGN_WORST;
	__u64 wait = (assign_tail(c, f, now) + c->pull_ns) & known, stick = c->stick_ns & known;
	__u64 best = assign_backlog(u, f->unit, 0, now);

	ASSIGN_UNROLL
	for (int k = 0; k < ASSIGN_TARGETS_MAX; k++)
		best = assign_min(best, assign_backlog(u, f->target[k], 1, now) | stale);
	ASSIGN_UNROLL
	for (int g = 0; g < ASSIGN_GROUPS; g++) {
		__u64 none = ~assign_less(least[g], ASSIGN_WORST) & ASSIGN_WORST;
		__u64 backlog = least[g] >> 6;
		__u64 score = (backlog ^ ((backlog ^ wait) & assign_less(backlog, wait))) + stick;

		best = assign_min(best, (ASSIGN_CANDIDATE(score, 2ull, least[g] & 63) | none) & ASSIGN_WORST);
	}
	return best;
}

/* assign_lowest returns the index of the lowest set bit, or 64 for the empty set. */
inlined __u64 assign_lowest(__u64 set)
{
	__u64 below = (set & -set) - 1;

	below -= below >> 1 & 0x5555555555555555ull;
	below = (below & 0x3333333333333333ull) + (below >> 2 & 0x3333333333333333ull);
	return (((below + (below >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull) >> 56;
}

/* assign_aim chooses the units that receive the state: the shortest queue of each
 * group, except the chosen unit. If there are too few, the next spare also
 * receives it. If a unit that served alone dies, that spare has its flows' state. */
inlined void assign_aim(const struct assign_config *c, const struct assign_units *u,
			struct assign_flow *f, __u64 unit, const __u64 least[ASSIGN_GROUPS])
{
	__u64 taken = 0, spare = assign_lowest(u->ready & ~u->accepting);

	ASSIGN_UNROLL
	for (__u32 k = 0; k < ASSIGN_TARGETS_MAX; k++) {
		__u64 next = ASSIGN_WORST, wanted, found, idle;

		ASSIGN_UNROLL
		for (int g = 0; g < ASSIGN_GROUPS; g++) {
			__u64 own = ((least[g] & 63) ^ unit) - 1; /* below 0 if it is the chosen one */
			__u64 before = assign_less(least[g], taken);

			next = assign_min(next, least[g] | ((assign_sign(own) | before) & ASSIGN_WORST));
		}
		wanted = assign_less(k, c->targets);
		found = assign_less(next, ASSIGN_WORST) & wanted;
		idle = assign_less(spare, ASSIGN_UNITS) & wanted & ~found;
		f->target[k] = (next & 63 & found) | (spare & idle) | (ASSIGN_NO_TARGET & ~(found | idle));
		spare |= ASSIGN_UNITS & idle; /* it is one target at most */
		taken = next + 1;
	}
}

/* assign_grow adds one unit if even the least loaded one has a queue. It ignores the chosen
 * unit: a flow that stays with its state on a long queue does not mean too few units. */
inlined int assign_grow(const struct assign_config *c, struct assign_units *u,
			const __u64 least[ASSIGN_GROUPS], __u64 now)
{
	__u64 others = u->ready & ~u->accepting, next = others & -others;
	__u64 shortest = assign_min(assign_min(least[0], least[1]), assign_min(least[2], least[3])) >> 6;

	if (shortest <= c->grow_ns || now - u->grown < c->grow_every_ns || !next)
		return 0;
	u->accepting |= next;
	u->grown = now;
	return ASSIGN_GREW;
}

/* assign_measure updates the flow's demand in bytes per window, never the rate inside a burst. */
inlined void assign_measure(const struct assign_config *c, struct assign_flow *f, __u64 now,
			    __u32 len)
{
	__u64 since = now - f->window;

	if (since >= c->window_ns) {
		f->demand_bytes = since >= 8 * c->window_ns ? 0
		    : f->demand_bytes - (f->demand_bytes >> 2) + (f->window_bytes >> 2);
		f->window = now;
		f->window_bytes = 0;
	}
	f->window_bytes += len;
}

/* assign_move gives the flow to a candidate's unit. Its state is there at once
 * on a replica; otherwise it arrives after the flow's own tail and a pull. */
inlined int assign_move(const struct assign_config *c, struct assign_flow *f, __u64 chosen,
			__u64 now)
{
	/* class 2 of a known flow */
	__u64 far = assign_sign(chosen << 56) & assign_less(f->unit, ASSIGN_UNITS);
	__u32 unit = chosen & 63;
	int moved = f->unit < ASSIGN_UNITS ? ASSIGN_MOVED | ASSIGN_FLOWLET : ASSIGN_FLOWLET;

	f->bytes = 0;
	if (f->unit == unit)
		return ASSIGN_FLOWLET;
	f->ready = (now & ~far) | ((assign_max(f->finish, now) + c->pull_ns) & far);
	f->previous = f->unit;
	f->unit = unit;
	f->epoch++;
	f->position = 0;
	return moved;
}

/* assign_packet assigns a packet to f->unit and returns assign_result bits. If
 * no unit accepts, a known flow keeps its unit and a new flow keeps ASSIGN_NONE. */
inlined int assign_packet(const struct assign_config *c, struct assign_units *u,
			  struct assign_flow *f, __u64 now, __u32 len)
{
	__u64 cost = assign_cost(c, len);
	int result = 0;

	u->bytes += len;
	if (assign_begins(c, u, f, now, len)) {
		__u64 least[ASSIGN_GROUPS], best;

		assign_least(u, now, least);
		best = assign_best(c, u, f, now, least);
		if (best != ASSIGN_WORST) {
			assign_aim(c, u, f, best & 63, least);
			result = assign_move(c, f, best, now);
			result |= assign_grow(c, u, least, now);
		}
	}
	if (f->unit >= ASSIGN_UNITS)
		return 0;

	__u32 at = f->unit;

	ASSIGN_OPAQUE(at);
	at &= ASSIGN_UNITS - 1;
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
