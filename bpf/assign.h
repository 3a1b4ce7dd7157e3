/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flowlet rule: which unit serves a flowlet, and when one more unit is needed at once. It is compiled into the
 * kernel program (bpf/flowlet.bpf.c) and into the Rust runtime and simulator (function/assign), so it calls nothing, has no
 * clock, and no branch inside its loop over the units. Times are nanoseconds of one monotonic clock.
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
#define ASSIGN_NO_TARGET 0xff
#define ASSIGN_GROUPS 4 /* unit i is in group i % 4; targets are of different groups */
/* Hides a value from the compiler, which else turns arithmetic back into branches: the verifier would follow 2^64 paths. */
#define ASSIGN_OPAQUE(x) __asm__ volatile("" : "+r"(x))

/* The kernel's program and the others are built by different compilers. */
#ifdef __clang__
#define ASSIGN_UNROLL _Pragma("unroll")
#else
#define ASSIGN_UNROLL _Pragma("GCC unroll 64")
#endif

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
};

/* What is known of the units. User space writes accepting, ready and, once a tick, the true queues. */
struct assign_units {
	__u64 finish[ASSIGN_UNITS]; /* when the unit would be done with all that it was given */
	__u64 accepting;            /* bit i: unit i takes new flowlets */
	__u64 ready;                /* bit i: unit i may be taken into service at once */
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
	__u64 window;  /* when the current window of its demand began */
	__u32 window_bytes;
	__u32 demand_bytes; /* per window, moving average with a weight of 1/4 */
	__u32 bytes;        /* of this flowlet */
	__u32 epoch;        /* units that it has had, this one included */
	__u32 position;     /* packets since this epoch began */
	__u16 unit, previous; /* of this epoch and of the one before */
	__u8 target[ASSIGN_TARGETS_MAX]; /* units that its state is pushed to when it falls silent; ASSIGN_NO_TARGET */
	__u8 pad[5];
};

enum assign_result {
	ASSIGN_FLOWLET = 1, /* the packet begins a flowlet */
	ASSIGN_MOVED = 2,   /* … on another unit than the last one */
	ASSIGN_GREW = 4,    /* … and one more unit was taken into service */
};

#define ASSIGN_WORST (~0ull >> 1)

/* assign_sign is all ones if the uppermost bit is set, else 0. What chooses between units has no branches. */
inlined __u64 assign_sign(__u64 x)
{
	__s64 sign = (__s64)x >> 63;

	ASSIGN_OPAQUE(sign);
	return sign;
}

/* assign_less is all ones if a < b, else 0; both below 2^63. */
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

/* assign_left is the time from now to then, 0 if then is past. */
inlined __u64 assign_left(__u64 then, __u64 now)
{
	return (then - now) & ~assign_sign(then - now);
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

/* assign_targets is the set of the flow's targets: bit i is unit i. */
inlined __u64 assign_targets(const struct assign_flow *f)
{
	__u64 set = 0;

	ASSIGN_UNROLL
	for (int k = 0; k < ASSIGN_TARGETS_MAX; k++)
		set |= (assign_less(f->target[k], ASSIGN_UNITS) & 1) << (f->target[k] & 63);
	return set;
}

/* assign_replicated is all ones if the flow's targets hold its state by now: it was pushed after half a gap of silence. */
inlined __u64 assign_replicated(const struct assign_config *c, const struct assign_flow *f, __u64 now)
{
	return ~assign_less(now, assign_max(f->finish, f->seen) + (c->gap_ns >> 1) + c->pull_ns);
}

/* assign_tail is how long the flow's own packets will keep its state where it is. When others delay the flow much, its
 * place in the queue says where the queue is long, not how much of it is the flow's: then only its own work counts,
 * or a large flow stays on an overloaded unit for ever. */
inlined __u64 assign_tail(const struct assign_config *c, const struct assign_flow *f, __u64 now)
{
	__u64 crowded = assign_less(f->alone + c->crowded_ns, f->finish);

	return assign_left(f->finish ^ ((f->finish ^ f->alone) & crowded), now);
}

/* A candidate packs a score and, below it, what settles a tie: the flow's own unit before a replica before any other
 * (class 0, 1, 2), then the lowest id. */
#define ASSIGN_CANDIDATE(score, class, id) ((score) << 8 | (class) << 6 | (id))

/* assign_backlog is a candidate of one unit by its queue alone, ASSIGN_WORST if it takes no flowlets or is none. */
inlined __u64 assign_backlog(const struct assign_units *u, __u32 id, __u64 class, __u64 now)
{
	__u64 none = ~assign_less(id, ASSIGN_UNITS);
	__u64 backlog, refuses;

	ASSIGN_OPAQUE(id); /* or the compiler sees that the mask changes nothing, and the verifier does not */
	id &= ASSIGN_UNITS - 1;
	backlog = u->finish[id] - now;
	refuses = assign_sign(~u->accepting << (63 - id));
	return ASSIGN_CANDIDATE(backlog & ~assign_sign(backlog), class, id) | ((refuses | none) & ASSIGN_WORST);
}

/* assign_least finds the shortest queue of each group: its length << 6 | id, ASSIGN_WORST if none accepts. All that is
 * done 64 times is here, by arithmetic alone. */
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

/* assign_best is the unit at which the flowlet would be served first. Its own unit and its replicas cost it the queue
 * there; any other costs it at least the wait for its state, and stick_ns on top. That wait is the same for all
 * others, so of each group only the shortest queue can win. A new flow has no state to wait for. */
inlined __u64 assign_best(const struct assign_config *c, const struct assign_units *u, const struct assign_flow *f,
			  __u64 now, const __u64 least[ASSIGN_GROUPS])
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

/* assign_lowest is the place of the lowest bit of a set: the number of ones below it. It is 64 if the set is empty. */
inlined __u64 assign_lowest(__u64 set)
{
	__u64 below = (set & -set) - 1;

	below -= below >> 1 & 0x5555555555555555ull;
	below = (below & 0x3333333333333333ull) + (below >> 2 & 0x3333333333333333ull);
	return (((below + (below >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull) >> 56;
}

/* assign_aim chooses where the state will be pushed to: the shortest queues of the groups, the chosen unit left out. If
 * those are too few, the state also goes to the spare that would be next: when a unit dies that served alone, it has
 * what its flows need. */
inlined void assign_aim(const struct assign_config *c, const struct assign_units *u, struct assign_flow *f, __u64 unit,
			const __u64 least[ASSIGN_GROUPS])
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

/* assign_grow takes one more unit into service if even the least loaded one has a queue. It looks at the least backlog
 * and not at the chosen unit's: a flow that stays with its state on a long queue is no sign of too few units. */
inlined int assign_grow(const struct assign_config *c, struct assign_units *u, const __u64 least[ASSIGN_GROUPS],
			__u64 now)
{
	__u64 others = u->ready & ~u->accepting, next = others & -others;
	__u64 shortest = assign_min(assign_min(least[0], least[1]), assign_min(least[2], least[3])) >> 6;

	if (shortest <= c->grow_ns || now - u->grown < c->grow_every_ns || !next)
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

/* assign_move gives the flow to the unit of a candidate. Its state comes with it, at once where a replica is, else after
 * its own tail and a pull. */
inlined int assign_move(const struct assign_config *c, struct assign_flow *f, __u64 chosen, __u64 now)
{
	__u64 far = assign_sign(chosen << 56) & assign_less(f->unit, ASSIGN_UNITS); /* class 2 of a known flow */
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

/* assign_packet decides the unit of a packet and accounts for it; the answer is f->unit. It returns assign_result. If
 * no unit accepts, a known flow stays where it is and a new one is left with ASSIGN_NONE. */
inlined int assign_packet(const struct assign_config *c, struct assign_units *u, struct assign_flow *f, __u64 now,
			  __u32 len)
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
