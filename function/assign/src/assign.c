/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The flowlet rule as functions that Rust can call. */
#include "assign.h"

_Static_assert(sizeof(struct assign_config) == 72, "struct Config in lib.rs");
_Static_assert(sizeof(struct assign_units) == 544, "struct Units in lib.rs");
_Static_assert(sizeof(struct assign_flow) == 80, "struct Flow in lib.rs");

int pando_assign_packet(const struct assign_config *c, struct assign_units *u,
			struct assign_flow *f, __u64 now, __u32 len)
{
	return assign_packet(c, u, f, now, len);
}

__u64 pando_assign_cost(const struct assign_config *c, __u32 len)
{
	return assign_cost(c, len);
}

__u64 pando_assign_targets(const struct assign_flow *f)
{
	return assign_targets(f);
}
