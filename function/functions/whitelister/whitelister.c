/* SPDX-License-Identifier: Apache-2.0
 *
 * UDP whitelister (SNF §8, after Bohatei). UDP from outside passes only as the answer to a request
 * from inside, while the flow is remembered. That stops reflection attacks. A packet of the device
 * of `--out` is from outside, whatever address it claims. It also inspects tunnels. Other protocols pass. It drops an IP packet with headers that contradict each other.
 *
 * Configuration:
 *     inside=10.0.0.0/8          IPv4 network that may send requests
 *     inside6=2001:db8::/32      IPv6 network that may send requests
 * One of the two is needed. Without the other, all requests of that version are refused.
 */
#include <pando_nf.h>

struct state {
	uint32_t asked;
	uint32_t reserved;
};

/* The first bits of an address. A network with too many bits matches nothing. */
struct network {
	uint8_t address[16];
	uint32_t bits;
};

#define NONE 129

static struct network inside, inside6;

static uint32_t prefix_length(const uint8_t *value, const uint8_t *end, uint32_t most, int *bad)
{
	uint32_t bits = 0;
	if (value >= end || *value++ != '/' || value >= end)
		*bad = 1;
	for (; !*bad && value < end; value++)
		bits = *value >= '0' && *value <= '9' && bits <= most ? bits * 10 + (*value - '0') : NONE;
	*bad |= bits > most;
	return bits;
}

static uint32_t hex_digit(uint8_t c)
{
	return c >= '0' && c <= '9' ? c - '0'
	    : c >= 'a' && c <= 'f'  ? c - 'a' + 10u
	    : c >= 'A' && c <= 'F'  ? c - 'A' + 10u
				    : 16;
}

/* Reads groups of up to four digits. A :: stands for the missing zeroes. */
static void read_ipv6(const uint8_t **at, const uint8_t *end, uint8_t address[16], int *bad)
{
	uint32_t bytes = 0, gap = NONE;
	const uint8_t *p = *at;
	if (p + 1 < end && p[0] == ':' && p[1] == ':') {
		gap = 0;
		p += 2;
	}
	while (p < end && hex_digit(*p) < 16) {
		uint32_t group = 0, digits = 0;
		for (; p < end && hex_digit(*p) < 16 && digits < 5; p++, digits++)
			group = group << 4 | hex_digit(*p);
		if (digits > 4 || bytes == 16) {
			*bad = 1;
			return;
		}
		address[bytes++] = (uint8_t)(group >> 8);
		address[bytes++] = (uint8_t)group;
		if (p + 1 < end && p[0] == ':' && p[1] == ':' && gap == NONE) {
			gap = bytes;
			p += 2;
		} else if (p + 1 < end && p[0] == ':' && hex_digit(p[1]) < 16) {
			p++;
		} else {
			break;
		}
	}
	*bad |= (gap == NONE) != (bytes == 16);
	for (uint32_t i = 0; !*bad && gap != NONE && i < bytes - gap; i++) {
		address[15 - i] = address[bytes - 1 - i];
		address[bytes - 1 - i] = 0;
	}
	*at = p;
}

static int configure(const uint8_t *config, uint32_t length)
{
	int bad = 0;
	uint32_t size, size6;
	const uint8_t *value = pando_config_value(config, length, "inside", &size);
	const uint8_t *value6 = pando_config_value(config, length, "inside6", &size6);
	if (!value && !value6)
		return 1;
	inside.bits = inside6.bits = NONE;
	if (value) {
		const uint8_t *end = value + size;
		uint32_t address = pando_config_ipv4(&value, end, &bad);
		pando_set_be16(inside.address, (uint16_t)(address >> 16));
		pando_set_be16(inside.address + 2, (uint16_t)address);
		inside.bits = bad ? NONE : prefix_length(value, end, 32, &bad);
	}
	if (value6 && !bad) {
		const uint8_t *end = value6 + size6;
		read_ipv6(&value6, end, inside6.address, &bad);
		inside6.bits = bad ? NONE : prefix_length(value6, end, 128, &bad);
	}
	return bad ? 2 : 0;
}

static int is_in(const struct network *n, const uint8_t *address)
{
	if (n->bits == NONE)
		return 0;
	for (uint32_t bit = 0; bit < n->bits; bit += 8) {
		uint32_t mask = n->bits - bit >= 8 ? 0xff : 0xff00u >> (n->bits - bit) & 0xff;
		if ((n->address[bit / 8] ^ address[bit / 8]) & mask)
			return 0;
	}
	return 1;
}

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	struct pando_headers h;
	uint8_t *p = pando_data(packet);
	if (!pando_parse_inner(p, packet->length, &h))
		return PANDO_DROP;
	if (h.protocol != 17)
		return PANDO_PASS;
	int asks = h.version == 4 ? is_in(&inside, p + h.ip + 12) : is_in(&inside6, p + h.ip + 8);
	if (packet->flags & PANDO_OUTER && asks) /* its source is a lie (RFC 2827) */
		return PANDO_DROP;
	if (packet->flags & PANDO_STATE_VALID)
		return PANDO_PASS;
	if (!asks)
		return PANDO_DROP;
	struct state s = {1, 0};
	pando_put(ctx, &s);
	return PANDO_PASS;
}

PANDO_FUNCTION_WITH("whitelister", struct state, process_packet, configure, 0);
