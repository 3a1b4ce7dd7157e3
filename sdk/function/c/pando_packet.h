/* SPDX-License-Identifier: Apache-2.0
 *
 * pando_packet.h: reads the headers of a packet, and changes its addresses. pando_nf.h includes it.
 */
#ifndef PANDO_PACKET_H
#define PANDO_PACKET_H

#include <stdint.h>

static inline uint16_t pando_be16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static inline uint32_t pando_be32(const uint8_t *p)
{
	return (uint32_t)pando_be16(p) << 16 | pando_be16(p + 2);
}

static inline void pando_set_be16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

/* The offsets of a packet's parts, all within the packet's length. */
struct pando_headers {
	uint32_t ip;         /* offset of the IP header */
	uint32_t transport;  /* offset after the IP header */
	uint32_t payload;    /* offset after the TCP or UDP header; else end */
	uint32_t end;        /* offset after the IP packet (Ethernet may pad) */
	uint8_t version;     /* 4 or 6 */
	uint8_t protocol;    /* 6 TCP, 17 UDP, … */
	uint8_t fragment;    /* 1: a fragment that is not a whole packet */
};

static inline int pando_parse_ipv4(const uint8_t *p, uint32_t length, struct pando_headers *h)
{
	uint32_t ip = h->ip, header = (p[ip] & 15u) * 4, total;
	if (length < ip + 20 || header < 20 || length < ip + header)
		return 0;
	total = pando_be16(p + ip + 2);
	if (total < header || length < ip + total)
		return 0;
	h->version = 4;
	h->protocol = p[ip + 9];
	h->fragment = (pando_be16(p + ip + 6) & 0x3fff) != 0;
	h->transport = ip + header;
	h->end = ip + total;
	return 1;
}

static inline int pando_parse_ipv6(const uint8_t *p, uint32_t length, struct pando_headers *h)
{
	uint32_t ip = h->ip, at = ip + 40;
	if (length < at)
		return 0;
	h->version = 6;
	h->fragment = 0;
	h->end = at + pando_be16(p + ip + 4);
	if (length < h->end)
		return 0;
	uint8_t next = p[ip + 6];
	for (int i = 0;
	     i < 8 && at + 8 <= h->end && (next == 0 || next == 43 || next == 60 || next == 44);
	     i++) {
		/* the only fragment is a whole packet */
		h->fragment |= next == 44 && (pando_be16(p + at + 2) & 0xfff9) != 0;
		uint32_t size = next == 44 ? 8 : 8 + p[at + 1] * 8u;
		next = p[at];
		at += size;
	}
	if (at > h->end)
		return 0;
	h->protocol = next;
	h->transport = at;
	return 1;
}

/* Returns the offset of the IP packet in an Ethernet frame, or 0. It skips up to two VLAN tags and
 * a PPPoE header. PPP's protocol field has two bytes, or one if the sender compresses it. */
static inline uint32_t pando_network(const uint8_t *p, uint32_t length)
{
	uint32_t at = 12;
	if (length < 14 + 20)
		return 0;
	for (int tags = 0; tags < 2; tags++)
		if (pando_be16(p + at) == 0x8100 || pando_be16(p + at) == 0x88a8)
			at += 4;
	uint32_t type = pando_be16(p + at), session = type == 0x8864 && pando_be16(p + at + 2) == 0x1100;
	at += session ? 8 : 0;
	if (length < at + 2 + 20)
		return 0;
	uint32_t compressed = session && (p[at] & 1);
	if (session) {
		type = compressed ? p[at] : pando_be16(p + at);
		type = type == 0x21 ? 0x0800 : type == 0x57 ? 0x86dd : 0;
	}
	at += compressed ? 1 : 2;
	return (type == 0x0800 && p[at] >> 4 == 4) || (type == 0x86dd && p[at] >> 4 == 6) ? at : 0;
}

/* Finds the headers of the IP packet at offset ip. */
static inline int pando_parse_at(const uint8_t *p, uint32_t length, uint32_t ip,
				 struct pando_headers *h)
{
	h->ip = ip;
	if (!(p[ip] >> 4 == 4 ? pando_parse_ipv4(p, length, h) : pando_parse_ipv6(p, length, h)))
		return 0;
	h->payload = h->end;
	if (h->fragment)
		return 1;
	/* A datagram that claims more bytes than arrived has no payload: its receiver drops it. */
	if (h->protocol == 17 && h->transport + 8 <= h->end &&
	    h->transport + pando_be16(p + h->transport + 4) <= h->end)
		h->payload = h->transport + 8;
	if (h->protocol == 6 && h->transport + 20 <= h->end) {
		uint32_t payload = h->transport + (p[h->transport + 12] >> 4) * 4u;
		if (payload >= h->transport + 20 && payload <= h->end)
			h->payload = payload;
	}
	return 1;
}

/* Finds the headers of a frame as pando_network does, and those after them; returns 0 if the frame
 * is not IPv4 or IPv6. The unit reassembles datagrams, so functions see no fragments. */
static inline int pando_parse(const uint8_t *p, uint32_t length, struct pando_headers *h)
{
	uint32_t ip = pando_network(p, length);
	return ip && pando_parse_at(p, length, ip, h);
}

/* Whether the packet is an ICMP echo or its answer. The unit treats its identifier, at offset
 * transport + 4, as both ports of its flow. */
static inline int pando_is_echo(const uint8_t *p, const struct pando_headers *h)
{
	uint32_t type = h->transport < h->end ? p[h->transport] : 255;
	return !h->fragment && h->transport + 8 <= h->end &&
	       ((h->version == 4 && h->protocol == 1 && (type == 8 || type == 0)) ||
		(h->version == 6 && h->protocol == 58 && (type == 128 || type == 129)));
}

/* Finds the packet that an ICMP error quotes; returns 0 for any other packet. Such an error belongs
 * to the quoted packet's flow and runs against it. At least 8 bytes follow quoted->transport. The
 * quote is cut short: quoted->end is the end of its bytes, and payload is not set. */
static inline int pando_quoted(const uint8_t *p, const struct pando_headers *h,
			       struct pando_headers *quoted)
{
	uint32_t type = h->transport < h->end ? p[h->transport] : 255, at = h->transport + 8;
	if (h->fragment ||
	    !((h->version == 4 && h->protocol == 1 && (type == 3 || type == 11 || type == 12)) ||
	      (h->version == 6 && h->protocol == 58 && type >= 1 && type <= 4)))
		return 0;
	uint32_t fixed = h->version == 4 ? 20 : 40;
	if (at + fixed > h->end || p[at] >> 4 != h->version)
		return 0;
	if (h->version == 4)
		fixed = (p[at] & 15u) * 4;
	*quoted = (struct pando_headers){.ip = at, .transport = at + fixed, .payload = at + fixed,
	    .end = h->end, .version = h->version, .protocol = p[at + (h->version == 4 ? 9 : 6)]};
	return fixed >= 20 && quoted->transport + 8 <= h->end &&
	       (h->version == 6 || !(pando_be16(p + at + 6) & 0x1fff));
}

/* Returns the offset of an IP packet of that version, or 0. */
static inline uint32_t pando_ip_at(const uint8_t *p, uint32_t at, uint32_t end, uint32_t version)
{
	return at + 20 <= end && p[at] >> 4 == version ? at : 0;
}

/* Returns the offset of the IP packet in an Ethernet frame at offset at, or 0. */
static inline uint32_t pando_frame_at(const uint8_t *p, uint32_t at, uint32_t end)
{
	uint32_t ip = at < end ? pando_network(p + at, end - at) : 0;
	return ip ? at + ip : 0;
}

/* Returns the IP packet that GRE carries: directly, in an Ethernet frame (TEB, ERSPAN types I and
 * II), or in PPP (PPTP). */
static inline uint32_t pando_gre(const uint8_t *p, uint32_t at, uint32_t end)
{
	if (at + 4 > end)
		return 0;
	uint32_t flags = pando_be16(p + at), type = pando_be16(p + at + 2),
		 ppp = (flags & 7) == 1 && type == 0x880b;
	if (flags & 0x4000 || (flags & 7 && !ppp))
		return 0;
	at += 4 + (flags & 0x8000 ? 4 : 0) + (flags & 0x2000 ? 4 : 0) + (flags & 0x1000 ? 4 : 0) +
	      (ppp && flags & 0x80 ? 4 : 0);
	if (at + 20 > end)
		return 0;
	if (ppp) {
		at += pando_be16(p + at) == 0xff03 ? 2 : 0;
		type = p[at] & 1 ? p[at] : pando_be16(p + at);
		at += p[at] & 1 ? 1 : 2;
		return type == 0x21 ? pando_ip_at(p, at, end, 4) : type == 0x57 ? pando_ip_at(p, at, end, 6) : 0;
	}
	if (type == 0x6558)
		return pando_frame_at(p, at, end);
	if (type == 0x88be) /* ERSPAN: type II numbers its packets and has a header of 8 bytes */
		return pando_frame_at(p, at + (flags & 0x1000 ? 8 : 0), end);
	uint32_t version = type == 0x0800 ? 4 : type == 0x86dd ? 6 : 0;
	return version ? pando_ip_at(p, at, end, version) : 0;
}

/* Largest depth of nested tunnels. */
#define PANDO_TUNNELS 4

/* As pando_parse, for the innermost packet of 4in4, 4in6, 6in4, 6in6 and GRE. The unit finds a
 * packet's flow by the same headers. */
static inline int pando_parse_inner(const uint8_t *p, uint32_t length, struct pando_headers *h)
{
	if (!pando_parse(p, length, h))
		return 0;
	for (int n = 0; n < PANDO_TUNNELS && !h->fragment; n++) {
		struct pando_headers inner;
		uint32_t ip = h->protocol == 4    ? pando_ip_at(p, h->transport, h->end, 4)
			      : h->protocol == 41 ? pando_ip_at(p, h->transport, h->end, 6)
			      : h->protocol == 47 ? pando_gre(p, h->transport, h->end)
						  : 0;
		if (!ip || !pando_parse_at(p, h->end, ip, &inner))
			break;
		*h = inner;
	}
	return 1;
}

/* Returns whether the transport header begins with ports. */
static inline int pando_has_ports(const struct pando_headers *h)
{
	return !h->fragment && ((h->protocol == 6 && h->transport + 20 <= h->end) ||
				(h->protocol == 17 && h->transport + 8 <= h->end));
}

/* RFC 1624: the checksum after one 16-bit word changed. */
static inline uint16_t pando_checksum_update(uint16_t checksum, uint16_t before, uint16_t after)
{
	uint32_t sum = (uint16_t)~checksum + (uint32_t)(uint16_t)~before + after;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* Replaces one word and updates the checksum at offset sum; 0 is no checksum. */
static inline void pando_set_word(uint8_t *p, uint32_t at, uint16_t value, uint32_t sum)
{
	if (sum)
		pando_set_be16(p + sum,
		    pando_checksum_update(pando_be16(p + sum), pando_be16(p + at), value));
	pando_set_be16(p + at, value);
}

/* Replaces the source (end 0) or the destination (end 1) of an IPv4 packet of TCP, UDP or ICMP, and
 * updates its checksums. The port is that of TCP or UDP, or the identifier of an echo; a negative
 * one stays as it is. For a packet that an error quotes, outer is the offset of the error's own
 * checksum; else it is 0. */
static inline void pando_rewrite_ipv4(uint8_t *p, const struct pando_headers *h, uint32_t end,
				      uint32_t address, int32_t port, uint32_t outer)
{
	uint32_t ports = h->protocol == 6 || h->protocol == 17, ip_sum = h->ip + 10;
	uint32_t sum_at = h->transport + (h->protocol == 6 ? 16 : ports ? 6 : 2);
	/* UDP: 0 means no checksum and stays; it is never the result. A quote may end before it. */
	uint32_t summed = sum_at + 2 <= h->end && (h->protocol != 17 || pando_be16(p + sum_at));
	uint32_t address_at = h->ip + 12 + 4 * end, port_at = h->transport + (ports ? 2 * end : 4);
	for (uint32_t i = 0; i < (port < 0 ? 2 : 3); i++) {
		uint32_t at = i < 2 ? address_at + 2 * i : port_at;
		uint16_t value = (uint16_t)(i == 0 ? address >> 16 : i == 1 ? address : (uint32_t)port);
		uint16_t before = pando_be16(p + at);
		if (i < 2)
			pando_set_word(p, ip_sum,
			    pando_checksum_update(pando_be16(p + ip_sum), before, value), outer);
		if (summed && (ports || i == 2)) {
			uint16_t sum = pando_checksum_update(pando_be16(p + sum_at), before, value);
			pando_set_word(p, sum_at, h->protocol == 17 && !sum ? 0xffff : sum, outer);
		}
		pando_set_word(p, at, value, outer);
	}
}

#endif
