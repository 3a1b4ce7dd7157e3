/* SPDX-License-Identifier: Apache-2.0
 *
 * Intrusion detection (SNF §8). Searches the payload of each direction of a flow for the contents
 * of Snort rules, by Aho-Corasick, across packets. It reports a rule's sid per flow and passes
 * every packet. A rule also selects packets by protocol, addresses, ports, direction, and whether
 * their flow is established. It searches inside tunnels.
 *
 * TCP is followed by sequence number, in two streams for each direction. A segment is searched in
 * each stream that it continues. One that continues none is searched by itself, and if it is not
 * late, a stream begins with it. So does a new connection, by its handshake. A new stream replaces
 * the one that did not advance last. So one forged packet, of any number, ends no search. Several
 * between two segments may end one, and the next segment begins it again. Segments are not
 * reordered, so a content is missed if part of it is late.
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
/* A segment that ends up to so many bytes before the end of a stream is late, or sent again. Others
 * are of another stream. */
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

struct stream {
	uint32_t at[2];    /* node of each automaton */
	uint32_t next;     /* sequence number after the last byte */
	uint32_t followed; /* 1: the stream exists */
};

struct direction {
	struct stream streams[2]; /* the first one advanced last, or is of the newest handshake */
};

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

/* Follows a stream from a sequence number on, and returns its index. A stream that is already there
 * keeps its automata, which find all that new ones would. */
static uint32_t follow(struct direction *d, uint32_t next)
{
	for (uint32_t n = 0; n < 2; n++)
		if (d->streams[n].followed && d->streams[n].next == next)
			return n;
	uint32_t n = d->streams[0].followed ? 1 : 0;
	d->streams[n] = (struct stream){{0, 0}, next, 1};
	return n;
}

static void put_first(struct direction *d, uint32_t n)
{
	struct stream first = d->streams[n];
	d->streams[n] = d->streams[0];
	d->streams[0] = first;
}

/* Follows the connection of a handshake. Anybody may send a SYN into a connection, which its
 * receiver ignores. So the former stream stays beside the new one. A SYN of a flow without state
 * leaves none, so a SYN flood leaves none. */
static void greet(struct pando_ctx *ctx, struct state *s, const uint8_t *tcp, uint32_t reply)
{
	uint32_t next = pando_be32(tcp + 4) + 1;
	if (tcp[13] & ACK) {
		s->server = 2 - reply;
		put_first(&s->directions[reply], follow(&s->directions[reply], next));
		put_first(&s->directions[!reply], follow(&s->directions[!reply], pando_be32(tcp + 8)));
	} else if (ctx->packet->flags & PANDO_STATE_VALID)
		follow(&s->directions[reply], next);
	else
		return;
	pando_changed(ctx);
}

/* Searches a segment in each stream that it continues, or by itself. */
static void search_segment(struct pando_ctx *ctx, struct state *s, const struct question *q,
			   struct direction *d, uint32_t sequence)
{
	const uint8_t *p = q->p + q->h.payload;
	uint32_t length = q->h.end - q->h.payload, continued = 0, late = 0;
	for (uint32_t n = 0; n < 2; n++) {
		struct stream *stream = &d->streams[n];
		uint32_t behind = stream->next - sequence;
		if (!stream->followed)
			continue;
		if (behind >= length) {
			late |= behind <= LATE_BYTES;
			continue;
		}
		search(ctx, s, q, stream->at, p + behind, length - behind);
		stream->next = sequence + length;
		continued |= 1 + n;
	}
	struct stream *streams = d->streams, alone = {{0, 0}, 0, 0};
	if (continued == 2)
		put_first(d, 1);
	else if (continued == 3 && streams[0].at[0] == streams[1].at[0] &&
		 streams[0].at[1] == streams[1].at[1])
		streams[1].followed = 0; /* both are one */
	else if (!continued && late)
		search(ctx, s, q, alone.at, p, length);
	else if (!continued) {
		struct stream *fresh = &streams[follow(d, sequence)];
		search(ctx, s, q, fresh->at, p, length);
		fresh->next = sequence + length;
	}
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
