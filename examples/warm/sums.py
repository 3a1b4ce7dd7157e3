"""The table that makes this program a slow starter: importing it takes about two seconds."""

from array import array

LIMIT = 1_000_000


def table(limit: int) -> array:
    """Returns the sum of the divisors of each number below limit."""
    sums = array("Q", [0]) * limit
    for divisor in range(1, limit):
        for multiple in range(divisor, limit, divisor):
            sums[multiple] += divisor
    return sums


SUMS = table(LIMIT)
