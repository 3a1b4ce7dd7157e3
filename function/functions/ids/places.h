/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of the IDS about a direction of TCP: the places where a search can continue, and the
 * first bytes of segments that came early.
 */
#ifndef PANDO_IDS_PLACES_H
#define PANDO_IDS_PLACES_H

#include <stdint.h>

/* Places and early segments of a direction. A place takes 12 bytes of state, a segment 40. */
#define PLACES 8
#define PIECES 3
#define PIECE_BYTES 32

struct place {
	uint32_t next;  /* sequence number after the last byte */
	uint32_t at[2]; /* node of each automaton */
};

/* The first bytes of segments that came early. */
struct piece {
	uint32_t sequence, length;
	uint8_t bytes[PIECE_BYTES];
};

struct direction {
	struct place places[PLACES]; /* the newest first */
	struct piece pieces[PIECES]; /* the newest first */
	uint32_t place_count, piece_count;
	uint32_t acknowledged; /* the receiver has all before this sequence number */
};

/* Returns the place that a new one takes: the oldest one. One before the acknowledged data goes
 * first, since its receiver takes no other data there. One at its end stays. */
static uint32_t victim(const struct direction *d)
{
	for (uint32_t n = PLACES; n-- > 0;)
		if ((int32_t)(d->acknowledged - d->places[n].next) > 0)
			return n;
	for (uint32_t n = PLACES; n-- > 0;)
		if (d->places[n].next != d->acknowledged)
			return n;
	return PLACES - 1;
}

/* Notes a place where the search can continue. */
static void note(struct direction *d, uint32_t next, const uint32_t at[2])
{
	struct place place = {next, {at[0], at[1]}};
	uint32_t count = d->place_count < PLACES ? d->place_count : PLACES, n = 0;
	while (n < count && (d->places[n].next != next || d->places[n].at[0] != at[0] ||
			     d->places[n].at[1] != at[1]))
		n++;
	if (n == count)
		n = count < PLACES ? count++ : victim(d);
	for (; n > 0; n--)
		d->places[n] = d->places[n - 1];
	d->places[0] = place;
	d->place_count = count;
}

/* Makes room for a piece: joins two that touch, or forgets the oldest. */
static void make_room(struct direction *d)
{
	for (uint32_t n = 0; n < PIECES; n++)
		for (uint32_t m = 0; m < PIECES; m++) {
			struct piece *a = &d->pieces[n], *b = &d->pieces[m];
			if (a->sequence + a->length != b->sequence || !b->length ||
			    b->length > PIECE_BYTES || a->length > PIECE_BYTES - b->length)
				continue;
			for (uint32_t i = 0; i < b->length; i++)
				a->bytes[a->length++] = b->bytes[i];
			for (; m + 1 < PIECES; m++)
				d->pieces[m] = d->pieces[m + 1];
			return;
		}
}

/* Keeps the first bytes of a segment that came early, once. */
static void keep(struct direction *d, uint32_t sequence, const uint8_t *p, uint32_t length)
{
	uint32_t count = d->piece_count < PIECES ? d->piece_count : PIECES, n;
	uint32_t bytes = length < PIECE_BYTES ? length : PIECE_BYTES;
	for (n = 0; n < count; n++) {
		uint32_t same = d->pieces[n].sequence == sequence && d->pieces[n].length >= bytes;
		for (uint32_t i = 0; i < bytes && same; i++)
			same = d->pieces[n].bytes[i] == p[i];
		if (same)
			return;
	}
	if (count < PIECES)
		count++;
	else
		make_room(d);
	for (n = count - 1; n > 0; n--)
		d->pieces[n] = d->pieces[n - 1];
	d->pieces[0].sequence = sequence;
	d->pieces[0].length = bytes;
	for (n = 0; n < bytes; n++)
		d->pieces[0].bytes[n] = p[n];
	d->piece_count = count;
}

/* Adds a segment to the pieces that end at it or within it. One that differs from a piece is kept
 * beside it. */
static void lengthen(struct direction *d, uint32_t sequence, const uint8_t *p, uint32_t length)
{
	uint32_t differs = 0;
	for (uint32_t n = 0; n < d->piece_count && n < PIECES; n++) {
		struct piece *piece = &d->pieces[n];
		uint32_t i = piece->sequence + piece->length - sequence;
		for (uint32_t b = 0; b < piece->length && b < PIECE_BYTES; b++)
			differs |= piece->sequence + b - sequence < length &&
				   piece->bytes[b] != p[piece->sequence + b - sequence];
		for (; i < length && piece->length < PIECE_BYTES; i++)
			piece->bytes[piece->length++] = p[i];
	}
	if (differs)
		keep(d, sequence, p, length);
}

#endif
