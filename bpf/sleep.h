/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* First packets for services that sleep. User space holds them until there is an endpoint. */
#ifndef SLEEP_H
#define SLEEP_H

#include "packet.h"

/* A SYN takes a tenth of the room of the largest packet, so that the ring has room for 1,800. */
#define HELD_SHORT 128

struct short_packet {
	__u32 service;
	__u32 bytes;
	__u8 frame[HELD_SHORT];
};

/* GIVE copies a packet of a type into the ring. */
#define GIVE(type)                                                              \
	do {                                                                    \
		struct type *h = bpf_ringbuf_reserve(&knocks, sizeof(*h), 0);   \
		if (!h)                                                         \
			return drop(DROP_NO_ENDPOINT);                          \
		h->service = service;                                           \
		h->bytes = bytes;                                               \
		if (bpf_skb_load_bytes(skb, 0, h->frame, bytes)) {              \
			bpf_ringbuf_discard(h, 0);                              \
			return drop(DROP_KERNEL);                               \
		}                                                               \
		bpf_ringbuf_submit(h, 0);                                       \
		return DROP;                                                    \
	} while (0)

/* hold_back gives the first packet of a flow to user space if its service sleeps. It returns 0 if
 * the service does not. A packet beyond the bounds is dropped: its client sends it again. */
apart int hold_back(struct __sk_buff *skb, struct packet *p, __u32 service)
{
	if (!p)
		return DROP;
	struct service *s = bpf_map_lookup_elem(&services, &service);
	__u32 bytes = skb->len;

	if (!s || !s->asleep || p->part != WHOLE)
		return 0;
	if (bytes < ETH_HLEN || bytes > HELD_BYTES)
		return drop(DROP_NO_ENDPOINT);
	if (bytes <= HELD_SHORT)
		GIVE(short_packet);
	GIVE(held_packet);
}

#endif
