/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* New flows, and the places that they take in a full table. A new flow replaces one without an
 * answer or of a closed connection, after a second of silence. So a flood of new flows closes no
 * group, and breaks no answered flow. flowlet.bpf.c includes this after its maps.
 *
 * A queue has the candidates. A flow enters it when it begins, and again when it ends. The oldest
 * candidate leaves a full queue. */
#ifndef FULL_H
#define FULL_H

#define REPLACE_NS 1000000000ull
#define REPLACE_TRIES 8

/* The low bits of a packet's way: its end. An alias and an error of ICMP belong to neither end. */
#define WAY_HIGH 1
#define WAY_OTHER 2
/* The flags of TCP in a way */
#define WAY_FIN (1 << 8)
#define WAY_SYN (1 << 9)
#define WAY_RST (1 << 10)
#define WAY_ACK (1 << 12)

/* marks of a flow: seen and FIN, a bit per end (low, high, by its alias); RST */
#define MARK_SEEN 0x7
#define MARK_FIN_SHIFT 3
#define MARK_FIN 0x38
#define MARK_RST 0x40

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1 << 18);
	__type(value, struct flowlet_key);
} flowlet_young SEC(".maps");

/* The highest epoch and clock of replaced flows. A new flow continues from there, so a unit
 * does not mistake it for an earlier flow with the same key. */
struct flowlet_past {
	__u64 clock;
	__u32 epoch;
	struct bpf_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flowlet_past);
} flowlet_past SEC(".maps");

/* A new flow and a candidate, which are too large for the stack. */
struct flowlet_scratch {
	struct assign_flow flow;
	__u32 rest[(sizeof(struct flowlet_flow) - sizeof(struct assign_flow)) / 4]; /* zeroes */
	struct flowlet_key candidate;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flowlet_scratch);
} flowlet_scratch SEC(".maps");

/* two returns a number other than 0 if more than one bit is set. */
inlined __u32 two(__u32 bits)
{
	return bits & (bits - 1);
}

/* is_over returns a number other than 0 if the connection is over. */
inlined __u32 is_over(__u32 marks)
{
	return (marks & MARK_RST) | two(marks & MARK_FIN);
}

/* mark notes a packet in its flow, without branches. It returns 1 if the packet ends the
 * connection. The first packet of a connection ends none. */
inlined __u32 mark(struct flowlet_flow *flow, __u32 way, __u32 flags)
{
	__u32 alias = flags / HEADER_TRANSLATED & 1, end = (way & WAY_HIGH & (alias - 1)) | alias << 1;
	__u32 first = way / WAY_SYN & ~(way / WAY_ACK) & 1, other = way / WAY_OTHER & 1;
	__u32 before = flow->marks & (MARK_SEEN | (first - 1)), now;

	now = 1 << end | (way / WAY_FIN & 1) << (MARK_FIN_SHIFT + end) | (way & WAY_RST) / 16;
	now = before | (now & (other - 1));
	flow->marks = now;
	return assign_less(0, is_over(now)) & ~assign_less(0, is_over(before)) & 1;
}

/* forget deletes a flow and its alias. */
inlined void forget(struct flowlet_past *past, struct flowlet_key *key, struct flowlet_flow *flow)
{
	__u32 epoch = flow->flow.epoch;
	__u64 clock = flow->flow.clock;

	bpf_spin_lock(&past->lock);
	past->epoch = assign_max(past->epoch, epoch);
	past->clock = assign_max(past->clock, clock);
	bpf_spin_unlock(&past->lock);
	struct flowlet_key *original = bpf_map_lookup_elem(&flowlet_aliases, &flow->alias);
	if (original && same(original, key))
		bpf_map_delete_elem(&flowlet_aliases, &flow->alias);
	bpf_map_delete_elem(&flowlet_flows, key);
}

/* replace makes room for a flow. It returns 0 if no candidate may go. Its caller is the program,
 * because the stack has room for one call. */
__noinline int replace(__u64 now)
{
	__u32 zero = 0;
	struct flowlet_scratch *scratch = bpf_map_lookup_elem(&flowlet_scratch, &zero);
	struct flowlet_past *past = bpf_map_lookup_elem(&flowlet_past, &zero);

	struct flowlet_tally *counts = bpf_map_lookup_elem(&flowlet_counts, &zero);

	if (!scratch || !past || !counts)
		return 0;
	for (int i = 0; i < REPLACE_TRIES; i++) {
		struct flowlet_key *key = &scratch->candidate;
		if (bpf_map_pop_elem(&flowlet_young, key))
			return 0;
		struct flowlet_flow *flow = bpf_map_lookup_elem(&flowlet_flows, key);
		if (!flow || (two(flow->marks & MARK_SEEN) && !is_over(flow->marks)))
			continue; /* an answered flow comes back at its end */
		if (flow->flow.seen + REPLACE_NS > now) {
			bpf_map_push_elem(&flowlet_young, key, BPF_EXIST);
			return 0;
		}
		forget(past, key, flow);
		counts->n[COUNT_REPLACED]++;
		return 1;
	}
	return 0;
}

/* begin makes a new flow without a unit. It returns 0 or an error of the table. */
inlined int begin(const struct flowlet_key *key)
{
	__u32 zero = 0;
	struct flowlet_scratch *new = bpf_map_lookup_elem(&flowlet_scratch, &zero);
	struct flowlet_past *past = bpf_map_lookup_elem(&flowlet_past, &zero);

	if (!new || !past)
		return -1;
	new->flow.unit = new->flow.previous = ASSIGN_NONE;
	for (int k = 0; k < ASSIGN_TARGETS_MAX; k++)
		new->flow.target[k] = ASSIGN_NO_TARGET;
	new->flow.epoch = past->epoch;
	new->flow.clock = past->clock;
	return bpf_map_update_elem(&flowlet_flows, key, new, BPF_NOEXIST);
}

/* meet maps an unknown key to the flow of its alias, or else to a new flow without a unit. It
 * returns HEADER_TRANSLATED for an alias. Not inlined: the verifier follows the rule once. */
__noinline int meet(struct flowlet_key *key)
{
	__u32 zero = 0;
	struct flowlet_tally *counts = bpf_map_lookup_elem(&flowlet_counts, &zero);
	struct flowlet_key *original, own;
	int flags = 0;

	if (!key || !counts)
		return 0;
	own = *key; /* kernels before 6.2 look up keys of the stack only */
	original = bpf_map_lookup_elem(&flowlet_aliases, &own);
	if (original) {
		*key = own = *original;
		flags = HEADER_TRANSLATED;
	}
	if (!begin(&own)) {
		counts->n[COUNT_FLOWS]++;
		bpf_map_push_elem(&flowlet_young, &own, BPF_EXIST);
	}
	return flags;
}

#endif
