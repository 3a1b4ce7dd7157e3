/* SPDX-License-Identifier: Apache-2.0
 *
 * Intrusion detection (SNF §8): looks for the contents of Snort rules in the payload of each direction of a flow, by
 * Aho-Corasick, across packets. It reports a rule's sid once per flow and lets everything pass.
 *
 * TCP is followed by sequence number: what came before is skipped, and a gap starts the search anew.
 *
 * Its configuration is what `pando fn rules` makes of rule files (see nf/runtime/src/rules.rs): two automata, one for
 * contents as they are and one for those with "nocase", each of
 *     header   { "PIDS", version 1, then for each automaton: nodes, dense rows, edges, outputs }, 4 bytes each
 *     nodes    { row or NONE, first edge, edge count, fail, first output, output count } * nodes
 *     rows     next node * 256, for nodes near the root
 *     edges    { byte << 24 | next node }, for the others: what is not here is looked for at the fail node
 *     outputs  sid, also of the contents that end within this one
 */
#define PANDO_CONFIG_BYTES (24 << 20)
#include <pando_nf.h>

#define NONE 0xffffffffu
#define REPORTED_MAX 16

struct node {
	uint32_t row, edge, edge_count, fail, output, output_count;
};

struct automaton {
	const struct node *nodes;
	const uint32_t *rows, *edges, *outputs;
	uint32_t node_count;
};

static struct automaton automata[2];

struct direction {
	uint32_t at[2];     /* node of each automaton */
	uint32_t next_sequence;
	uint32_t following; /* 1: next_sequence is good */
};

struct state {
	struct direction directions[2];
	uint32_t reported_count;
	uint32_t reported[REPORTED_MAX];
};

static int in_range(const struct automaton *a, uint32_t rows, uint32_t edges, uint32_t outputs)
{
	for (uint32_t i = 0; i < a->node_count; i++) {
		const struct node *n = &a->nodes[i];
		/* A node without a row falls back to an earlier node, so every search ends. */
		if ((n->row == NONE ? n->fail >= i : n->row >= rows) || n->edge > edges || n->edge_count > edges - n->edge ||
		    n->output > outputs || n->output_count > outputs - n->output)
			return 0;
	}
	for (uint32_t i = 0; i < rows * 256; i++)
		if (a->rows[i] >= a->node_count)
			return 0;
	for (uint32_t i = 0; i < edges; i++)
		if ((a->edges[i] & 0xffffff) >= a->node_count)
			return 0;
	return 1;
}

static int configure(const uint8_t *config, uint32_t length)
{
	const uint32_t *words = (const uint32_t *)(const void *)config;
	uint32_t at = 10, total = length / 4;
	if (length < 40 || words[0] != 0x53444950u || words[1] != 1)
		return 1;
	for (int n = 0; n < 2; n++) {
		const uint32_t *sizes = words + 2 + 4 * n;
		uint64_t need = (uint64_t)sizes[0] * 6 + (uint64_t)sizes[1] * 256 + sizes[2] + sizes[3];
		if (sizes[0] == 0 || need > total - at)
			return 2;
		struct automaton *a = &automata[n];
		a->node_count = sizes[0];
		a->nodes = (const struct node *)(words + at);
		a->rows = words + at + sizes[0] * 6;
		a->edges = a->rows + sizes[1] * 256;
		a->outputs = a->edges + sizes[2];
		if (!in_range(a, sizes[1], sizes[2], sizes[3]))
			return 3;
		at += (uint32_t)need;
	}
	return 0;
}

static inline uint32_t step(const struct automaton *a, uint32_t at, uint8_t byte)
{
	for (;;) {
		const struct node *n = &a->nodes[at];
		if (n->row != NONE)
			return a->rows[n->row * 256 + byte];
		const uint32_t *edges = a->edges + n->edge;
		for (uint32_t i = 0; i < n->edge_count; i++)
			if (edges[i] >> 24 == byte)
				return edges[i] & 0xffffff;
		at = n->fail;
	}
}

static void report(struct pando_ctx *ctx, struct state *s, uint32_t sid)
{
	for (uint32_t i = 0; i < s->reported_count; i++)
		if (s->reported[i] == sid)
			return;
	if (s->reported_count < REPORTED_MAX && pando_event(ctx, sid))
		s->reported[s->reported_count++] = sid;
}

static void search(struct pando_ctx *ctx, struct state *s, struct direction *d, const uint8_t *p, uint32_t length)
{
	for (int n = 0; n < 2; n++) {
		const struct automaton *a = &automata[n];
		uint32_t at = d->at[n] < a->node_count ? d->at[n] : 0;
		for (uint32_t i = 0; i < length; i++) {
			uint8_t byte = p[i];
			if (n == 1 && byte >= 'A' && byte <= 'Z')
				byte |= 0x20;
			at = step(a, at, byte);
			const struct node *found = &a->nodes[at];
			for (uint32_t o = 0; o < found->output_count; o++)
				report(ctx, s, a->outputs[found->output + o]);
		}
		d->at[n] = at;
	}
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct pando_headers h;
	const uint8_t *p = pando_data(packet);
	struct state *s = pando_state(ctx);
	if (!pando_parse(p, packet->length, &h) || h.payload >= h.end)
		return PANDO_PASS;
	struct direction *d = &s->directions[packet->flags & PANDO_REPLY ? 1 : 0];
	uint32_t length = h.end - h.payload, skip = 0;
	if (h.protocol == 6) {
		uint32_t sequence = pando_be32(p + h.transport + 4);
		uint32_t behind = d->next_sequence - sequence;
		if (d->following && behind < 0x80000000u)
			skip = behind;
		else if (d->following)
			d->at[0] = d->at[1] = 0;
		if (skip >= length)
			return PANDO_PASS;
		d->next_sequence = sequence + length;
		d->following = 1;
	} else {
		d->at[0] = d->at[1] = 0; /* datagrams are searched one by one */
	}
	search(ctx, s, d, p + h.payload + skip, length - skip);
	pando_changed(ctx);
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("ids", struct state, process_packet, configure, 0);
