/* SPDX-License-Identifier: Apache-2.0
 *
 * Intrusion detection (SNF §8): looks for the contents of Snort rules in the payload of each direction of a flow, by
 * Aho-Corasick, across packets. It reports a rule's sid per flow and lets everything pass.
 *
 * TCP is followed by sequence number. A gap starts the search anew, and a segment from before it is searched by itself:
 * nothing is put back in order, so a content that a late segment has only a part of is missed.
 *
 * Its configuration is what `pando fn run --rules` makes of rule files (see nf/runtime/src/rules.rs): two automata, one
 * for contents as they are and one for those with "nocase", each of
 *     header   { "PIDS", version 2, then for each automaton: nodes, dense rows, edges, outputs }, 4 bytes each
 *     nodes    { first edge, edge count, fail, first output, output count } * nodes; the first ones, near the root, are dense
 *     rows     { SLOW or 0 | next node } * 256, one for each dense node
 *     edges    { byte << 24 | next node }, for the others: what is not here is looked for at the fail node
 *     outputs  sid, also of the contents that end within this one
 *
 * Nearly all bytes of real traffic are spent between dense nodes without output. SLOW, in the entry that leads to any
 * other node, makes those bytes one load and one test each; both automata advance together, so their loads overlap.
 */
#define PANDO_CONFIG_BYTES (24 << 20)
#include <pando_nf.h>

#define SLOW 0x80000000u
#define NODE 0x00ffffffu
#define REPORTED 16
#define TURN_BYTES 4

struct node {
	uint32_t edge, edge_count, fail, output, output_count;
};

struct automaton {
	const struct node *nodes;
	const uint32_t *rows, *edges, *outputs;
	uint32_t node_count, row_count;
};

static struct automaton automata[2];

struct direction {
	uint32_t at[2];     /* node of each automaton */
	uint32_t next_sequence;
	uint32_t following; /* 1: next_sequence is good */
};

struct state {
	struct direction directions[2];
	uint32_t next_report; /* place of the one to forget */
	uint32_t reported[REPORTED];
};

static int in_range(const struct automaton *a, uint32_t edges, uint32_t outputs)
{
	for (uint32_t i = 0; i < a->node_count; i++) {
		const struct node *n = &a->nodes[i];
		/* A node without a row falls back to an earlier node, so every search ends. */
		if ((i >= a->row_count && n->fail >= i) || n->edge > edges || n->edge_count > edges - n->edge || n->output > outputs ||
		    n->output_count > outputs - n->output)
			return 0;
	}
	for (uint32_t i = 0; i < a->row_count * 256; i++)
		if ((a->rows[i] & ~SLOW) >= (a->rows[i] & SLOW ? a->node_count : a->row_count))
			return 0;
	for (uint32_t i = 0; i < edges; i++)
		if ((a->edges[i] & NODE) >= a->node_count)
			return 0;
	return 1;
}

static int configure(const uint8_t *config, uint32_t length)
{
	const uint32_t *words = (const uint32_t *)(const void *)config;
	uint32_t at = 10, total = length / 4;
	if (length < 40 || words[0] != 0x53444950u || words[1] != 2)
		return 1;
	for (int n = 0; n < 2; n++) {
		const uint32_t *sizes = words + 2 + 4 * n;
		uint64_t need = (uint64_t)sizes[0] * 5 + (uint64_t)sizes[1] * 256 + sizes[2] + sizes[3];
		if (sizes[1] == 0 || sizes[1] > sizes[0] || need > total - at)
			return 2;
		struct automaton *a = &automata[n];
		a->node_count = sizes[0];
		a->row_count = sizes[1];
		a->nodes = (const struct node *)(words + at);
		a->rows = words + at + sizes[0] * 5;
		a->edges = a->rows + sizes[1] * 256;
		a->outputs = a->edges + sizes[2];
		if (!in_range(a, sizes[2], sizes[3]))
			return 3;
		at += (uint32_t)need;
	}
	return 0;
}

static uint32_t step(const struct automaton *a, uint32_t at, uint8_t byte)
{
	for (;;) {
		if (at < a->row_count)
			return a->rows[at * 256 + byte] & NODE;
		const struct node *n = &a->nodes[at];
		const uint32_t *edges = a->edges + n->edge;
		for (uint32_t i = 0; i < n->edge_count; i++)
			if (edges[i] >> 24 == byte)
				return edges[i] & NODE;
		at = n->fail;
	}
}

static inline uint8_t lower(uint8_t byte) { return (uint8_t)(byte | ((uint8_t)(byte - 'A') < 26) << 5); }

/* A sid is reported once per flow, unless REPORTED others have come since: then it may be again, but none is missed. */
static void report(struct pando_ctx *ctx, struct state *s, uint32_t sid)
{
	for (uint32_t i = 0; i < REPORTED; i++)
		if (s->reported[i] == sid)
			return;
	if (pando_event(ctx, sid))
		s->reported[s->next_report++ % REPORTED] = sid;
}

static void report_all(struct pando_ctx *ctx, struct state *s, const struct automaton *a, uint32_t at)
{
	const struct node *found = &a->nodes[at];
	for (uint32_t o = 0; o < found->output_count; o++)
		report(ctx, s, a->outputs[found->output + o]);
}

/* Both automata over one byte; 0, and no move, when that leads to a node that is not dense or has output. */
static inline int advance(uint32_t at[2], uint8_t byte)
{
	uint32_t exact = automata[0].rows[at[0] * 256 + byte], folded = automata[1].rows[at[1] * 256 + lower(byte)];
	if ((exact | folded) & SLOW)
		return 0;
	at[0] = exact;
	at[1] = folded;
	return 1;
}

/* Advances from byte i for as long as it can; returns the byte at which it cannot. Several bytes a turn: what a turn of
 * a loop costs besides (its meter, in WebAssembly) is theirs together. */
static inline uint32_t hurry(const uint8_t *p, uint32_t i, uint32_t length, uint32_t at[2])
{
	for (; length - i >= TURN_BYTES; i += TURN_BYTES)
		for (uint32_t n = 0; n < TURN_BYTES; n++)
			if (!advance(at, p[i + n]))
				return i + n;
	while (i < length && advance(at, p[i]))
		i++;
	return i;
}

static void search(struct pando_ctx *ctx, struct state *s, struct direction *d, const uint8_t *p, uint32_t length)
{
	const struct automaton *exact = &automata[0], *folded = &automata[1];
	uint32_t at[2] = {d->at[0] < exact->node_count ? d->at[0] : 0, d->at[1] < folded->node_count ? d->at[1] : 0};
	for (uint32_t i = 0; i < length; i++) {
		if (at[0] < exact->row_count && at[1] < folded->row_count)
			i = hurry(p, i, length, at);
		if (i == length)
			break;
		at[0] = step(exact, at[0], p[i]);
		at[1] = step(folded, at[1], lower(p[i]));
		report_all(ctx, s, exact, at[0]);
		report_all(ctx, s, folded, at[1]);
	}
	d->at[0] = at[0];
	d->at[1] = at[1];
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct pando_headers h;
	const uint8_t *p = pando_data(packet);
	struct state *s = pando_state(ctx);
	if (!pando_parse(p, packet->length, &h) || h.payload >= h.end)
		return PANDO_PASS;
	struct direction *d = &s->directions[packet->flags & PANDO_REPLY ? 1 : 0];
	struct direction alone = {{0, 0}, 0, 0};
	uint32_t length = h.end - h.payload, skip = 0;
	if (h.protocol == 6) {
		uint32_t sequence = pando_be32(p + h.transport + 4);
		uint32_t behind = d->next_sequence - sequence;
		if (d->following && behind < 0x80000000u)
			skip = behind;
		else if (d->following)
			d->at[0] = d->at[1] = 0;
		if (skip >= length) { /* seen before, or late: what may fill a gap is searched by itself */
			d = &alone;
			skip = 0;
		} else {
			d->next_sequence = sequence + length;
			d->following = 1;
		}
	} else {
		d->at[0] = d->at[1] = 0; /* datagrams are searched one by one */
	}
	search(ctx, s, d, p + h.payload + skip, length - skip);
	pando_changed(ctx);
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("ids", struct state, process_packet, configure, 0);
