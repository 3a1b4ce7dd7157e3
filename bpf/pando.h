/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What user space and the kernel programs of Pando share. Every struct here has no hidden padding. */
#ifndef PANDO_H
#define PANDO_H

#include <linux/types.h>

#define TABLE_SLOTS 16381 /* prime; buckets of one service's table */
#define SERVICES_MAX 256
#define ENDPOINTS_MAX 8192
#define NAME_BYTES 128

enum flow_flag { FLOW_ESTABLISHED = 1, FLOW_FIN = 2, FLOW_RST = 4 };

enum drop {
	DROP_SPOOFED = 0,    /* an instance sent what is not its own */
	DROP_FRAGMENT,       /* of a packet to a VIP */
	DROP_NO_SERVICE,     /* a VIP:port that nobody serves */
	DROP_NO_ENDPOINT,    /* a service without an endpoint in rotation */
	DROP_NO_FLOW,        /* not the first packet of a flow, and no flow known */
	DROP_KINDS,
};

/* A served address: addr and ports in network order. */
struct service_key {
	__u32 addr;
	__u16 port;
	__u8 protocol;
	__u8 pad;
};

struct service_port {
	__u32 service;
	__u16 target; /* network order */
	__u16 pad;
};

struct flow_key {
	__u32 client;
	__u32 vip;
	__u16 client_port;
	__u16 port;
	__u8 protocol;
	__u8 pad[3];
};

struct flow {
	__u32 endpoint;
	__u32 epoch;
	__u32 flags;
	__u16 target; /* network order */
	__u16 pad;
	__u64 seen; /* coarse nanoseconds since boot */
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
	__u32 addr;
	__u32 vip;
	__u8 mac[6];
	__u8 pad[2];
};

struct name {
	__u32 service;
	__u32 used;
	char text[NAME_BYTES];
};

#endif
