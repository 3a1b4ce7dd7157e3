/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Measures the TCP connections that an instance accepts: round trip times and resent segments. Only
 * instances with an entry in paths are measured, so that all others pay for one lookup at a
 * handshake. */
#ifndef TRAVEL_H
#define TRAVEL_H

#include "straight.h"

/* The totals of the connections of one instance (pando.PathUse). */
struct path_use {
	__u64 rtt_us; /* the sum of the smoothed round trip times */
	__u64 samples;
	__u64 resent; /* segments */
};

struct {
	GROWING(ENDPOINTS_MAX, __u32, struct path_use);
} paths SEC(".maps"); /* by ifindex of the host's end */

/* path_of returns the totals of the instance of a socket, if it is measured. */
inlined struct path_use *path_of(struct bpf_sock_ops *ctx)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);
	__u32 *ifindex = bpf_map_lookup_elem(&clients, &cookie);

	if (!ifindex)
		return 0;
	__u32 key = *ifindex;
	return bpf_map_lookup_elem(&paths, &key);
}

/* travels runs when a connection is accepted, and then at its samples and resent segments. */
SEC("sockops")
int travels(struct bpf_sock_ops *ctx)
{
	__u32 op = ctx->op;

	if (op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && op != BPF_SOCK_OPS_RTT_CB &&
	    op != BPF_SOCK_OPS_RETRANS_CB)
		return PROCEED;
	struct path_use *u = path_of(ctx);
	if (!u)
		return PROCEED;
	if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		bpf_sock_ops_cb_flags_set(ctx, BPF_SOCK_OPS_RTT_CB_FLAG | BPF_SOCK_OPS_RETRANS_CB_FLAG);
	} else if (op == BPF_SOCK_OPS_RTT_CB) {
		__sync_fetch_and_add(&u->rtt_us, ctx->srtt_us >> 3); /* the kernel counts eighths */
		__sync_fetch_and_add(&u->samples, 1);
	} else {
		__sync_fetch_and_add(&u->resent, ctx->args[1]);
	}
	return PROCEED;
}

#endif
