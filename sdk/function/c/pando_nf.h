/* SPDX-License-Identifier: Apache-2.0
 *
 * pando_nf.h: write a network function for Pando in C.
 *
 * A function is one call per packet and some state per flow:
 *
 *     #include <pando_nf.h>
 *     struct state { uint64_t packets; };
 *
 *     static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
 *     {
 *         struct state s = {0};
 *         pando_get(ctx, &s);
 *         s.packets++;
 *         pando_put(ctx, &s);
 *         return s.packets > 100 ? PANDO_DROP : PANDO_PASS;
 *     }
 *     PANDO_FUNCTION("first-hundred", struct state, process_packet)
 *
 * The unit that runs the function owns the state: it moves with the flow from unit to unit and
 * survives a crash. Globals do neither; use them only for values that pando_configure() reads once.
 * A function has the packet's clock, no randomness, no I/O: equal packets give equal outputs.
 *
 * The calls use one batch interface (ABI version 1). The unit writes up to 32 packets and their
 * flows' state into memory, calls pando_process(count), and reads back; all is little endian. */
#ifndef PANDO_NF_H
#define PANDO_NF_H

#include <stdint.h>

#define PANDO_ABI 1
#define PANDO_BATCH_PACKETS 32
#define PANDO_BATCH_BYTES (128 * 1024) /* of all packets of a batch, with their room to grow */
#define PANDO_BATCH_EVENTS 1024
#define PANDO_STATE_BYTES_MAX 4096

enum pando_verdict { PANDO_DROP = 0, PANDO_PASS = 1 };

/* struct pando_packet.flags, set by the unit */
#define PANDO_STATE_VALID 1u /* the flow has state: some earlier packet put it */
#define PANDO_REPLY 2u       /* against the direction of the flow's first packet */
#define PANDO_TRANSLATED 4u  /* it met the flow by addresses of an earlier output (pando_alias) */
#define PANDO_LEASED 8u      /* .lease is good: a new flow is offered one, and keeps what it took */
#define PANDO_OUTER 128u     /* it came in at the device of --out; never with one device */
/* … set by the function */
#define PANDO_STATE_PUT 16u
#define PANDO_LEASE_TAKEN 32u
#define PANDO_ALIAS 64u

/* One packet of a batch: 40 bytes. Offsets count from the start of linear memory. */
struct pando_packet {
	uint32_t data;     /* offset of the Ethernet header */
	uint32_t length;   /* bytes; the function may change it, up to capacity */
	uint32_t capacity; /* bytes */
	uint32_t state;    /* offset of the slot with the flow's state */
	uint32_t flags;
	uint32_t verdict;  /* enum pando_verdict */
	uint32_t lease;    /* a number that is unique among the function's flows, for example a port */
	uint32_t earlier;  /* 1 + index of the flow's packet before this one in the batch, or 0 */
	uint64_t time_ns;  /* arrival of the packet; never decreases within a flow on one unit */
};

/* A report to the owner of the function, for example an IDS's alert. */
struct pando_event {
	uint32_t packet; /* index in the batch */
	uint32_t code;   /* defined by the function, for example the sid of a rule */
};

struct pando_batch {
	uint32_t current;     /* index of the current packet, which identifies a trap's cause */
	uint32_t event_count; /* reset by the unit */
	struct pando_packet packets[PANDO_BATCH_PACKETS];
	struct pando_event events[PANDO_BATCH_EVENTS];
	uint8_t data[PANDO_BATCH_BYTES];
};

/* The descriptor; pando_describe() returns its offset. */
struct pando_descriptor {
	uint32_t abi;          /* PANDO_ABI */
	uint32_t state_bytes;  /* size of a flow's state, at most PANDO_STATE_BYTES_MAX */
	uint32_t batch;        /* offset of struct pando_batch */
	uint32_t slots;        /* offset of PANDO_BATCH_PACKETS slots, each state_bytes rounded up to 8 */
	uint32_t config;       /* offset of the buffer for the configuration */
	uint32_t config_bytes; /* its size; 0: the function has no configuration */
	uint32_t leases;       /* 1: offer a lease to each new flow */
	char name[36];         /* ends with 0 */
};

struct pando_ctx {
	struct pando_packet *packet;
	struct pando_batch *batch;
	uint32_t state_bytes;
};

#ifdef __wasm__
#define PANDO_AT(offset) ((uint8_t *)(uintptr_t)(offset))
#define PANDO_OFFSET(pointer) ((uint32_t)(uintptr_t)(pointer))
#define PANDO_EXPORT(name) __attribute__((export_name(#name), visibility("default")))
#define PANDO_SYMBOL(name) name
#define PANDO_DEFINE_AREA_BYTES _Static_assert(1, "")
#else /* compiled for the host, as the wasm's twin: offsets count from the function's own area */
#define PANDO_AT(offset) (PANDO_SYMBOL(pando_area) + (offset))
#define PANDO_OFFSET(pointer) ((uint32_t)((uint8_t *)(pointer)-PANDO_SYMBOL(pando_area)))
#define PANDO_EXPORT(name)
#define PANDO_DEFINE_AREA_BYTES                                                                 \
	const uint32_t PANDO_SYMBOL(pando_area_bytes) = sizeof(PANDO_SYMBOL(pando_area))
#define PANDO_SYMBOL_2(prefix, name) prefix##_##name
#define PANDO_SYMBOL_1(prefix, name) PANDO_SYMBOL_2(prefix, name)
#define PANDO_SYMBOL(name) PANDO_SYMBOL_1(PANDO_TWIN, name)
#ifndef PANDO_CONFIG_BYTES
#define PANDO_CONFIG_BYTES 4096
#endif
extern uint8_t PANDO_SYMBOL(pando_area)[];
extern const uint32_t PANDO_SYMBOL(pando_area_bytes);
#endif

#ifndef PANDO_CONFIG_BYTES
#define PANDO_CONFIG_BYTES 4096 /* define it before the include for more */
#endif

/* The bytes of the packet, from the Ethernet header on. */
static inline uint8_t *pando_data(const struct pando_packet *p) { return PANDO_AT(p->data); }

/* The flow's state, in place; zeroes without state. Call pando_changed() after a write. */
static inline void *pando_state(const struct pando_ctx *c) { return PANDO_AT(c->packet->state); }

static inline void pando_changed(struct pando_ctx *ctx)
{
	ctx->packet->flags |= PANDO_STATE_PUT | PANDO_STATE_VALID;
}

/* Copies the flow's state to value. Without state it returns 0 and leaves value unchanged. */
static inline int pando_get(const struct pando_ctx *ctx, void *value)
{
	if (!(ctx->packet->flags & PANDO_STATE_VALID))
		return 0;
	__builtin_memcpy(value, pando_state(ctx), ctx->state_bytes);
	return 1;
}

/* Sets the flow's state to value. */
static inline void pando_put(struct pando_ctx *ctx, const void *value)
{
	__builtin_memcpy(pando_state(ctx), value, ctx->state_bytes);
	pando_changed(ctx);
}

/* Takes the number that was leased for this flow; returns 0 without a lease. */
static inline int pando_lease(struct pando_ctx *ctx, uint32_t *number)
{
	if (!(ctx->packet->flags & PANDO_LEASED))
		return 0;
	ctx->packet->flags |= PANDO_LEASE_TAKEN;
	*number = ctx->packet->lease;
	return 1;
}

/* Packets in answer to the packet's addresses and ports on return then belong to this flow. */
static inline void pando_alias(struct pando_ctx *ctx) { ctx->packet->flags |= PANDO_ALIAS; }

/* Reports an event to the owner of the function; returns 0 if the batch has no room. */
static inline int pando_event(struct pando_ctx *ctx, uint32_t code)
{
	struct pando_batch *batch = ctx->batch;
	if (batch->event_count >= PANDO_BATCH_EVENTS)
		return 0;
	struct pando_event *event = &batch->events[batch->event_count++];
	event->packet = (uint32_t)(ctx->packet - batch->packets);
	event->code = code;
	return 1;
}

#define PANDO_DEFINE_AREA(state_type)                                                           \
	struct PANDO_SYMBOL(pando_layout) {                                                     \
		struct pando_batch batch;                                                       \
		struct pando_descriptor descriptor;                                             \
		_Alignas(8) uint8_t slots[PANDO_BATCH_PACKETS * ((sizeof(state_type) + 7) / 8 * 8)];\
		uint8_t config[PANDO_CONFIG_BYTES] __attribute__((aligned(8)));                 \
	};                                                                                      \
	_Alignas(64) uint8_t PANDO_SYMBOL(pando_area)[sizeof(struct PANDO_SYMBOL(pando_layout))];\
	PANDO_DEFINE_AREA_BYTES

#define PANDO_LAYOUT ((struct PANDO_SYMBOL(pando_layout) *)PANDO_SYMBOL(pando_area))

/* The exports of a function that takes leases (1) or not (0). It reads its configuration by int
 * configure(const uint8_t *config, uint32_t length), which returns 0 or an error code. */
#define PANDO_FUNCTION_WITH(function_name, state_type, process, configure, takes_leases)        \
	PANDO_DEFINE_AREA(state_type);                                                          \
	_Static_assert(sizeof(state_type) <= PANDO_STATE_BYTES_MAX, "state: at most 4096 bytes");\
	PANDO_EXPORT(pando_describe) uint32_t PANDO_SYMBOL(pando_describe)(void)                \
	{                                                                                       \
		PANDO_LAYOUT->descriptor = (struct pando_descriptor){                           \
		    .abi = PANDO_ABI,                                                           \
		    .state_bytes = sizeof(state_type),                                          \
		    .batch = PANDO_OFFSET(&PANDO_LAYOUT->batch),                                \
		    .slots = PANDO_OFFSET(PANDO_LAYOUT->slots),                                 \
		    .config = PANDO_OFFSET(PANDO_LAYOUT->config),                               \
		    .config_bytes = PANDO_CONFIG_BYTES,                                         \
		    .leases = takes_leases,                                                     \
		    .name = function_name,                                                      \
		};                                                                              \
		return PANDO_OFFSET(&PANDO_LAYOUT->descriptor);                                 \
	}                                                                                       \
	PANDO_EXPORT(pando_configure) int32_t PANDO_SYMBOL(pando_configure)(uint32_t length)    \
	{                                                                                       \
		return configure(PANDO_LAYOUT->config, length);                                 \
	}                                                                                       \
	PANDO_EXPORT(pando_process) void PANDO_SYMBOL(pando_process)(uint32_t count)            \
	{                                                                                       \
		struct pando_batch *batch = &PANDO_LAYOUT->batch;                               \
		struct pando_ctx ctx = {.batch = batch, .state_bytes = sizeof(state_type)};     \
		for (uint32_t i = 0; i < count; i++) {                                          \
			batch->current = i;                                                     \
			ctx.packet = &batch->packets[i];                                        \
			if (i > 0)                                                              \
				pando_inherit(batch, i);                                        \
			ctx.packet->verdict = process(&ctx, ctx.packet);                        \
		}                                                                               \
	}                                                                                       \
	_Static_assert(1, "")

/* A packet shares the slot of an earlier packet of its flow in the batch, and finds its state. */
static inline void pando_inherit(struct pando_batch *batch, uint32_t index)
{
	uint32_t earlier = batch->packets[index].earlier;
	if (earlier)
		batch->packets[index].flags |= batch->packets[earlier - 1].flags & PANDO_STATE_VALID;
}

static inline int pando_no_configuration(const uint8_t *config, uint32_t length)
{
	(void)config;
	return length ? 1 : 0;
}

#define PANDO_FUNCTION(function_name, state_type, process)                                      \
	PANDO_FUNCTION_WITH(function_name, state_type, process, pando_no_configuration, 0)

#include "pando_packet.h"

/* --- reading a configuration of lines "key=value" -------------------------------------------- */

/* Returns the value of key, or 0; *length is its length in bytes. */
static inline const uint8_t *pando_config_value(const uint8_t *config, uint32_t size,
						const char *key, uint32_t *length)
{
	for (uint32_t at = 0; at < size;) {
		uint32_t end = at, k = 0;
		while (end < size && config[end] != '\n')
			end++;
		while (key[k] && at + k < end && config[at + k] == (uint8_t)key[k])
			k++;
		if (!key[k] && at + k < end && config[at + k] == '=') {
			*length = end - at - k - 1;
			return config + at + k + 1;
		}
		at = end + 1;
	}
	return 0;
}

/* Returns a decimal number, or otherwise if the key is absent. It sets *bad if the value is not a
 * number. */
static inline uint64_t pando_config_number(const uint8_t *config, uint32_t size, const char *key,
					   uint64_t otherwise, int *bad)
{
	uint32_t length;
	const uint8_t *value = pando_config_value(config, size, key, &length);
	uint64_t number = 0;
	if (!value)
		return otherwise;
	if (length == 0 || length > 18)
		*bad = 1;
	for (uint32_t i = 0; i < length; i++) {
		if (value[i] < '0' || value[i] > '9')
			*bad = 1;
		number = number * 10 + (value[i] - '0');
	}
	return number;
}

/* Reads an IPv4 address at *at and moves *at behind it; sets *bad on an error. */
static inline uint32_t pando_config_ipv4(const uint8_t **at, const uint8_t *end, int *bad)
{
	uint32_t address = 0;
	for (int part = 0; part < 4; part++) {
		uint32_t number = 0, digits = 0;
		for (; *at < end && **at >= '0' && **at <= '9' && digits < 3; (*at)++, digits++)
			number = number * 10 + (**at - '0');
		if (!digits || number > 255 || (part < 3 && (*at >= end || **at != '.')))
			*bad = 1;
		if (*bad)
			return 0;
		if (part < 3)
			(*at)++;
		address = address << 8 | number;
	}
	return address;
}

#endif
