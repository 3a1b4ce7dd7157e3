/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The memory that the units of a group on one host share. The group makes it (driver/sandbox/unit), and the
 * units use it (function/unit/src/member/shared.rs). A test on either side compares the
 * constants there with these. Sizes and positions are in words of 8 bytes.
 *
 * The first page is the group's. A page per unit follows, then a ring for each ordered pair of
 * units, then the time of the last use of each leasable number.
 */
#ifndef GROUP_H
#define GROUP_H

#define GROUP_UNITS 64
#define GROUP_WORDS 67404288 /* the whole memory */
#define GROUP_PAGE_WORDS 512

/* The first page. The group writes it. */
#define GROUP_ALIVE 0 /* a bit per live unit */

/* A unit's page. Other units write the doorbell; the unit writes the rest. */
#define GROUP_DOORBELL 0 /* a bit per unit that left a message */
#define GROUP_SLEEPS 8 /* not 0: the unit sleeps until its eventfd wakes it */
#define GROUP_REPORT_NOW 16 /* time of the report, ns of the monotonic clock */
#define GROUP_REPORT_FINISH 17 /* time at which the unit will have served its packets */
#define GROUP_REPORT_WAITING 18 /* packets not served yet */
#define GROUP_REPORT_PACKETS 19 /* packets taken from steering */
#define GROUP_REPORT_BYTES 20 /* bytes taken from steering */
#define GROUP_REPORT_LEFT 21 /* 1: a leaving unit has handed over all its flows */
#define GROUP_REPORT_WORKED 22 /* processor time used, in ns; 0 for a unit with a limited rate */

/* The ring from unit i to unit j is the ring j * GROUP_UNITS + i. */
#define GROUP_RINGS 33280 /* position of the first ring */
#define GROUP_RING_WORDS 16384
#define GROUP_RING_HEAD 0 /* position of the next record to read, in words since the start */
#define GROUP_RING_TAIL 8 /* position of the next record to write */
#define GROUP_RING_RECORDS 16 /* a record is its length in bytes and as many bytes */

#define GROUP_NUMBERS 67142144 /* position of the times: 32 bits per stage and number */

#endif
