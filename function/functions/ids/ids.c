/* SPDX-License-Identifier: Apache-2.0
 *
 * Intrusion detection (SNF §8). Searches the payload of each direction of a flow for the contents
 * of Snort rules, by Aho-Corasick, across packets. It reports a rule's sid per flow and passes
 * every packet. A rule also selects packets by protocol, addresses, ports, direction, and whether
 * their flow is established. It searches inside tunnels.
 *
 * TCP is followed by sequence number, in each direction from several places of the stream. The
 * receiver alone knows the segments that it takes, so data that comes twice from one place is
 * searched twice. A forged segment adds a place and takes none away. The places that the receiver
 * acknowledged last stay. A segment without a place is searched by itself, and if it is not late,
 * its end is a new place. So is the beginning of a new connection, by its handshake.
 *
 * The first bytes of a segment that came early are kept. A search that reaches them continues in
 * them. So a content is found in segments out of order, if its part in early segments is within
 * these bytes.
 *
 * A flow's server is the sender of SYN and ACK. Without those, it is the end that did not send
 * first, unless only the first sender's port is below 1024. A TCP segment with data makes its flow
 * established. A datagram's flow is established once both directions were seen.
 *
 * `pando fn run --rules` builds the configuration from rule files (see function/rules).
 * It has two automata, one for exact contents and one for contents with "nocase", then the rules:
 *     header   { "PIDS", version 3, then for each automaton: nodes, dense rows, edges, outputs;
 *                rules, words of sets }, 4 bytes each
 *     nodes    { first edge, edge count, fail, first output, output count } * nodes
 *              The first nodes, near the root, are dense.
 *     rows     { SLOW or 0 | next node } * 256, one for each dense node
 *     edges    { byte << 24 | next node }, for the others
 *              A missing byte continues at the fail node.
 *     outputs  number of a rule, including the rules of contents that end within this one
 *     rules    { sid, flags, addresses and ports from, addresses and ports to } * rules
 *              A set is the offset of its first word.
 *     sets     { ranges of 32 bits, ranges of 128 bits, first and last of each range }
 *              A value above 32 bits takes four words.
 *
 * Real traffic spends nearly all bytes between dense nodes without output. SLOW marks an entry that
 * leads to any other node. So those bytes cost one load and one test each. Both automata advance
 * together, so their loads overlap.
 */
#define PANDO_CONFIG_BYTES (24 << 20)
#include <pando_nf.h>

#include "places.h"

#define SLOW 0x80000000u
#define NODE 0x00ffffffu
#define REPORTED 16

/* flags of a rule */
#define TCP 1u
#define UDP 2u
#define BOTH_WAYS 4u
#define ESTABLISHED 8u
#define TO_SERVER 16u
#define TO_CLIENT 32u

#define TURN_BYTES 4
/* Bytes of a segment between two looks for searches that have become the same. */
#define STRETCH_BYTES 64
/* A segment that ends up to so many bytes before a place is late, or sent again. Others are of
 * another connection. */
#define LATE_BYTES (1u << 20)

/* flags of TCP */
#define SYN 2u
#define ACK 16u

struct node {
	uint32_t edge, edge_count, fail, output, output_count;
};

struct automaton {
	const struct node *nodes;
	const uint32_t *rows, *edges, *outputs;
	uint32_t node_count, row_count;
};

struct rule {
	uint32_t sid, flags, from, from_ports, to, to_ports;
};

static struct automaton automata[2];
static const struct rule *rules;
static const uint32_t *sets;
static uint32_t rule_count, set_words;

struct state {
	struct direction directions[2];
	uint32_t seen;        /* 1: packets of the flow's first direction, 2: of the other one */
	uint32_t server;      /* 1: the flow's first direction goes to it, 2: the second, 0: unknown */
	uint32_t next_report; /* index of the next sid to forget */
	uint32_t reported[REPORTED];
};

/* Returns whether a set and all its ranges are within the words of sets. */
static int is_set(uint32_t at)
{
	if (set_words < 2 || at > set_words - 2)
		return 0;
	uint64_t need = (uint64_t)sets[at] * 2 + (uint64_t)sets[at + 1] * 8;
	return need <= set_words - 2 - at;
}

static int rules_in_range(void)
{
	for (uint32_t i = 0; i < rule_count; i++) {
		const struct rule *r = &rules[i];
		if (!is_set(r->from) || !is_set(r->from_ports) || !is_set(r->to) || !is_set(r->to_ports))
			return 0;
	}
	return 1;
}

static int in_range(const struct automaton *a, uint32_t edges, uint32_t outputs)
{
	for (uint32_t i = 0; i < outputs; i++)
		if (a->outputs[i] >= rule_count)
			return 0;
	for (uint32_t i = 0; i < a->node_count; i++) {
		const struct node *n = &a->nodes[i];
		/* A node without a row falls back to an earlier node, so every search ends. */
		if ((i >= a->row_count && n->fail >= i) || n->edge > edges || n->edge_count > edges - n->edge ||
		    n->output > outputs ||
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
	uint32_t at = 12, total = length / 4;
	if (length < 48 || words[0] != 0x53444950u || words[1] != 3)
		return 1;
	rule_count = words[10];
	set_words = words[11];
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
	if ((uint64_t)rule_count * 6 + set_words > total - at)
		return 2;
	rules = (const struct rule *)(const void *)(words + at);
	sets = words + at + rule_count * 6;
	return rules_in_range() ? 0 : 3;
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

static inline uint8_t lower(uint8_t byte)
{
	return (uint8_t)(byte | ((uint8_t)(byte - 'A') < 26) << 5);
}

/* The fields of the current packet that rules test. */
struct question {
	const uint8_t *p;
	struct pando_headers h;
	uint32_t flags; /* as the flags of a rule: protocol and state of the flow */
};

static int has_number(const uint32_t *set, uint32_t number)
{
	for (uint32_t i = 0; i < set[0]; i++)
		if (set[2 + 2 * i] <= number && number <= set[3 + 2 * i])
			return 1;
	return 0;
}

/* Compares an address of 128 bits with one in four words, as memcmp. */
static int compare(const uint8_t *address, const uint32_t *words)
{
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t word = pando_be32(address + 4 * i);
		if (word != words[i])
			return word < words[i] ? -1 : 1;
	}
	return 0;
}

static int has_address(const uint32_t *set, const struct question *q, uint32_t at)
{
	if (q->h.version == 4)
		return has_number(set, pando_be32(q->p + q->h.ip + 12 + 4 * at));
	const uint8_t *address = q->p + q->h.ip + 8 + 16 * at;
	const uint32_t *range = set + 2 + 2 * set[0];
	for (uint32_t i = 0; i < set[1]; i++, range += 8)
		if (compare(address, range) >= 0 && compare(address, range + 4) <= 0)
			return 1;
	return 0;
}

/* Returns whether the packet goes from one end of a rule to the other. */
static int goes(const struct question *q, uint32_t from, uint32_t from_ports, uint32_t to,
		uint32_t to_ports)
{
	const uint8_t *ports = q->p + q->h.transport;
	return has_number(sets + from_ports, pando_be16(ports)) &&
	    has_number(sets + to_ports, pando_be16(ports + 2)) &&
	       has_address(sets + from, q, 0) && has_address(sets + to, q, 1);
}

static int speaks_of(const struct rule *r, const struct question *q)
{
	uint32_t asked = r->flags & (ESTABLISHED | TO_SERVER | TO_CLIENT);
	if (!(r->flags & q->flags & (TCP | UDP)) || (asked & q->flags) != asked)
		return 0;
	return goes(q, r->from, r->from_ports, r->to, r->to_ports) ||
	       (r->flags & BOTH_WAYS && goes(q, r->to, r->to_ports, r->from, r->from_ports));
}

/* Reports a sid once per flow. After REPORTED other sids it may report it again, but it misses
 * none. */
static void report(struct pando_ctx *ctx, struct state *s, uint32_t sid)
{
	for (uint32_t i = 0; i < REPORTED; i++)
		if (s->reported[i] == sid)
			return;
	if (pando_event(ctx, sid))
		s->reported[s->next_report++ % REPORTED] = sid;
}

static void report_all(struct pando_ctx *ctx, struct state *s, const struct question *q,
		       const struct automaton *a, uint32_t at)
{
	const struct node *found = &a->nodes[at];
	for (uint32_t o = 0; o < found->output_count; o++) {
		const struct rule *r = &rules[a->outputs[found->output + o]];
		if (speaks_of(r, q))
			report(ctx, s, r->sid);
	}
}

/* Advances both automata by one byte. Returns 0, without moving, if the next node has output or is
 * not dense. */
static inline int advance(uint32_t at[2], uint8_t byte)
{
	uint32_t exact = automata[0].rows[at[0] * 256 + byte];
	uint32_t folded = automata[1].rows[at[1] * 256 + lower(byte)];
	if ((exact | folded) & SLOW)
		return 0;
	at[0] = exact;
	at[1] = folded;
	return 1;
}

/* Advances from byte i and returns the first byte that needs the slow path. Each turn handles
 * several bytes, which share the cost of a turn (its meter, in WebAssembly). */
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

static void search(struct pando_ctx *ctx, struct state *s, const struct question *q,
		   uint32_t nodes[2], const uint8_t *p, uint32_t length)
{
	const struct automaton *exact = &automata[0], *folded = &automata[1];
	uint32_t at[2] = {nodes[0] < exact->node_count ? nodes[0] : 0,
			  nodes[1] < folded->node_count ? nodes[1] : 0};
	for (uint32_t i = 0; i < length; i++) {
		if (at[0] < exact->row_count && at[1] < folded->row_count)
			i = hurry(p, i, length, at);
		if (i == length)
			break;
		at[0] = step(exact, at[0], p[i]);
		at[1] = step(folded, at[1], lower(p[i]));
		report_all(ctx, s, q, exact, at[0]);
		report_all(ctx, s, q, folded, at[1]);
	}
	nodes[0] = at[0];
	nodes[1] = at[1];
}

/* Follows the connection of a handshake. Anybody may send a SYN into a connection, which its
 * receiver ignores. So the former places stay beside the new one. A SYN of a flow without state
 * leaves none, so a SYN flood leaves none. */
static void greet(struct pando_ctx *ctx, struct state *s, const uint8_t *tcp, uint32_t reply)
{
	static const uint32_t root[2];
	uint32_t next = pando_be32(tcp + 4) + 1;
	if (tcp[13] & ACK) {
		s->server = 2 - reply;
		note(&s->directions[!reply], pando_be32(tcp + 8), root);
		s->directions[!reply].acknowledged = pando_be32(tcp + 8);
	} else if (!(ctx->packet->flags & PANDO_STATE_VALID))
		return;
	note(&s->directions[reply], next, root);
	pando_changed(ctx);
}

/* Continues a search that has reached pieces, in each of them to its end or to the beginning of
 * another one. It ends, since each step is further. */
static void join(struct pando_ctx *ctx, struct state *s, const struct question *q,
		 struct direction *d, uint32_t next, const uint32_t at[2])
{
	for (uint32_t n = 0; n < d->piece_count && n < PIECES; n++) {
		const struct piece *piece = &d->pieces[n];
		uint32_t from = next - piece->sequence, nodes[2] = {at[0], at[1]};
		uint32_t length = piece->length < PIECE_BYTES ? piece->length : PIECE_BYTES;
		if (from >= length)
			continue;
		uint32_t to = length;
		for (uint32_t m = 0; m < d->piece_count && m < PIECES; m++) {
			uint32_t begin = d->pieces[m].sequence - piece->sequence;
			if (from < begin && begin < to)
				to = begin;
		}
		search(ctx, s, q, nodes, piece->bytes + from, to - from);
		if (to == length)
			note(d, piece->sequence + to, nodes);
		join(ctx, s, q, d, piece->sequence + to, nodes);
	}
}

/* A search in a segment, from one of its bytes on. */
struct run {
	uint32_t from, at[2];
};

/* Runs searches to the end of a segment. Returns their number without those that became the same
 * as an earlier one: they find the same from there on. */
static uint32_t run_all(struct pando_ctx *ctx, struct state *s, const struct question *q,
			struct run *runs, uint32_t count, uint32_t length)
{
	const uint8_t *p = q->p + q->h.payload;
	for (uint32_t i = 0, end = 0; i < length; i = end) {
		end = count == 1 || length - i < STRETCH_BYTES ? length : i + STRETCH_BYTES;
		for (uint32_t n = 0; n < count; n++) {
			uint32_t from = runs[n].from > i ? runs[n].from : i;
			if (from < end)
				search(ctx, s, q, runs[n].at, p + from, end - from);
		}
		for (uint32_t n = 1; n < count; n++)
			for (uint32_t m = 0; m < n; m++)
				if (runs[n].from < end && runs[m].from < end &&
				    runs[n].at[0] == runs[m].at[0] && runs[n].at[1] == runs[m].at[1]) {
					runs[n--] = runs[--count];
					break;
				}
	}
	return count;
}

/* Searches a segment from each place within it, or by itself. */
static void search_segment(struct pando_ctx *ctx, struct state *s, const struct question *q,
			   struct direction *d, uint32_t sequence)
{
	const uint8_t *p = q->p + q->h.payload;
	uint32_t length = q->h.end - q->h.payload, next = sequence + length, count = 0, late = 0;
	struct run runs[PLACES];
	for (uint32_t n = 0; n < d->place_count && n < PLACES; n++) {
		const struct place *place = &d->places[n];
		uint32_t from = place->next - sequence;
		if (from < length)
			runs[count++] = (struct run){from, {place->at[0], place->at[1]}};
		else
			late |= from <= LATE_BYTES;
	}
	/* A receiver takes other data for all that it has not acknowledged. */
	late = late && (!d->acknowledged || (int32_t)(d->acknowledged - sequence) > 0);
	uint32_t alone = !count;
	if (alone)
		runs[count++] = (struct run){0, {0, 0}};
	count = run_all(ctx, s, q, runs, count, length);
	/* Nothing comes before data that the receiver waits for. */
	if (!d->acknowledged || (int32_t)(sequence - d->acknowledged) > 0) {
		if (alone && !late)
			keep(d, sequence, p, length);
		else
			lengthen(d, sequence, p, length);
	}
	for (uint32_t n = count; n-- > 0;) {
		if (!alone || !late)
			note(d, next, runs[n].at);
		join(ctx, s, q, d, next, runs[n].at);
	}
}

/* Notes an acknowledgment by the receiver of the other direction. */
static void acknowledge(struct pando_ctx *ctx, struct direction *d, uint32_t number)
{
	if (!(ctx->packet->flags & PANDO_STATE_VALID) || d->acknowledged == number)
		return;
	d->acknowledged = number;
	pando_changed(ctx);
}

/* Returns the flow's state, updated by this packet of direction `way` (1 or 2). */
static uint32_t flow_flags(struct state *s, const struct question *q, uint32_t way)
{
	const uint8_t *ports = q->p + q->h.transport;
	int tcp = q->h.protocol == 6;
	s->seen |= way;
	if (!s->server) {
		int from_server = tcp && pando_be16(ports) < 1024 && pando_be16(ports + 2) >= 1024;
		s->server = from_server ? 3 - way : way;
	}
	return (tcp ? TCP | ESTABLISHED : UDP | (s->seen == 3 ? ESTABLISHED : 0)) |
	    (s->server == way ? TO_SERVER : TO_CLIENT);
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct question q = {pando_data(packet), {0}, 0};
	struct pando_headers *h = &q.h;
	struct state *s = pando_state(ctx);
	uint32_t reply = packet->flags & PANDO_REPLY ? 1 : 0;
	if (!pando_parse_inner(q.p, packet->length, h) || !pando_has_ports(h))
		return PANDO_PASS;
	const uint8_t *transport = q.p + h->transport;
	uint32_t syn = h->protocol == 6 && transport[13] & SYN ? 1 : 0;
	if (syn)
		greet(ctx, s, transport, reply);
	else if (h->protocol == 6 && transport[13] & ACK)
		acknowledge(ctx, &s->directions[!reply], pando_be32(transport + 8));
	if (h->payload >= h->end)
		return PANDO_PASS;
	q.flags = flow_flags(s, &q, 1 + reply);
	uint32_t at[2] = {0, 0};
	if (h->protocol == 6) /* a SYN takes a number of its own, before its data */
		search_segment(ctx, s, &q, &s->directions[reply], pando_be32(transport + 4) + syn);
	else /* each datagram is searched by itself */
		search(ctx, s, &q, at, q.p + h->payload, h->end - h->payload);
	pando_changed(ctx);
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("ids", struct state, process_packet, configure, 0);
