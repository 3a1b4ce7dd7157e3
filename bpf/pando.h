/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What user space and the steering programs share. Every struct here has no hidden padding. An address takes four words:
 * IPv6 as it is, IPv4 as ::ffff:a.b.c.d. Addresses and ports are in network order. */
#ifndef PANDO_H
#define PANDO_H

#include <linux/types.h>

#define TABLE_SLOTS 16381 /* prime; buckets of one service's table */
#define SERVICES_MAX 256
#define ENDPOINTS_MAX 8192
#define NAME_BYTES 128

enum flow_flag { FLOW_ESTABLISHED = 1, FLOW_FIN = 2, FLOW_RST = 4 };

/* What is counted on every CPU: first why a packet was dropped (the order is that of driver/ebpf), then the rest. */
enum count {
	DROP_SPOOFED = 0, /* an instance sent what is not its own */
	DROP_CHATTER,     /* an instance's link-local chatter, which nobody needs */
	DROP_FRAGMENT,    /* whose first fragment was not seen */
	DROP_HEADER,      /* a header that is cut short, too long a chain, or with a route of its own */
	DROP_PROTOCOL,    /* to a VIP, and neither TCP, UDP, an echo nor an error */
	DROP_NO_SERVICE,  /* a VIP:port that nobody serves */
	DROP_NO_ENDPOINT, /* a service without an endpoint for it, or a flow whose endpoint is gone */
	DROP_NO_FLOW,     /* not the first packet of a flow, and no flow known */
	DROP_KERNEL,      /* the kernel could not change the packet as needed */
	DROP_KINDS,
	COUNT_REFUSED = DROP_KINDS, /* dropped packets that were answered with RST or ICMP */
	COUNT_ADDED,      /* flows put into the connection table */
	COUNT_REMOVED,    /* flows taken out of it by the programs */
	COUNT_SWEPT,      /* flows taken out of it by the sweep; written by user space alone */
	COUNTS,
};

/* A served address. */
struct service_key {
	__u32 addr[4];
	__u16 port;
	__u8 protocol;
	__u8 pad;
};

/* What a port of one instance is at its other side: published -> target for what comes, target -> published for what goes. */
struct port_key {
	__u32 ifindex; /* of the host's end of the instance's link */
	__u16 port;
	__u8 protocol;
	__u8 goes;
};

/* A key of the connection table has of the VIP only what tells it from other VIPs (they share a /16 and a /64): a word less to
 * hash for every packet. */
struct flow_key {
	__u32 client;
	__u16 client_port;
	__u16 port;
	__u16 vip; /* its last two bytes */
	__u8 protocol;
	__u8 pad;
};

struct flow_key6 {
	__u32 client[4];
	__u32 vip[2]; /* its last eight bytes */
	__u16 client_port;
	__u16 port;
	__u8 protocol;
	__u8 pad[3];
};

struct flow {
#ifdef LAYOUT_NEXT /* the trial layout, with which the upgrade of pinned tables is tested */
	__u64 spare;
	__u32 flags;
	__u32 endpoint;
	__u32 epoch;
#else
	__u32 endpoint;
	__u32 epoch;
	__u32 flags;
#endif
	__u16 target;
	__u16 pad;
	__u64 seen; /* when, in ticks; of a TCP flow that is not established: its first packet */
};

/* A datagram in pieces. Only the first has ports; the others follow it. */
struct fragment_key {
	__u32 src[4];
	__u32 dst[4];
	__u32 id;
	__u8 protocol;
	__u8 pad[3];
};

struct fragment {
	__u32 endpoint;
	__u32 epoch;
};

struct endpoint {
	__u32 ifindex; /* 0: unused */
	__u32 epoch;   /* grows when the slot gets another instance */
	__u8 mac[6];
	__u8 host_mac[6];
	__u32 service;
};

struct service {
	__u32 active; /* which of its two tables */
	__u32 endpoints[2]; /* with a bucket, by table */
	__u32 pad;
};

struct table {
	__u16 endpoint[TABLE_SLOTS + 3];
};

struct counters {
	__u64 flows;
	__u64 packets;
	__u64 bytes;
};

struct instance_link {
	__u32 addr[2][4]; /* its own, IPv4 and IPv6 */
	__u32 vip[2][4];  /* its service's */
	__u8 mac[6];
	__u8 pad[2];
};

/* How many answers of the kernel's own went out in the second that began at since. */
struct pace {
	__u64 since;
	__u64 answers;
};

struct name {
	__u32 service;
	__u32 used;
	char text[NAME_BYTES];
};

#endif
