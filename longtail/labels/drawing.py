"""Draw the first centres of a split as numpy's generator does, in compiled code.

A tree has as many splits as inner nodes, each with a seed of its own. Numpy takes longer to make a
generator than to split a small cluster, and no other thread computes meanwhile. So what
`default_rng(seed).choice(n, k, replace=False)` does is done here, bit for bit: the seed is hashed
(O'Neill's seed_seq), PCG64 (O'Neill 2014) draws 64 bits at a time, Lemire's product (2019) makes
them numbers below a bound, and Floyd's algorithm takes k distinct ones, which are shuffled.
"""

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit

POOL = 4  # words of 32 bits that a seed is spread over
WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
# Hashing a seed, and reading the pool: where a factor begins, and by what it grows.
SPREAD, SPREAD_GROWTH = np.uint32(0x43B0D7E5), np.uint32(0x931E8875)
READ, READ_GROWTH = np.uint32(0x8B51F9DD), np.uint32(0x58F38DED)
MIX_LEFT, MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
# PCG64's factor, 128 bits.
FACTOR_HIGH, FACTOR_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)


@njit(nogil=True, cache=True)
def draw_places(n: int, k: int, seed: np.uint64) -> NDArray[np.int64]:
    """Return k distinct numbers below n, by the seed; k is at most n, and few."""
    generator = _seed_generator(seed)
    places = np.empty(k, np.int64)
    for i in range(k):
        place = _draw_up_to(generator, n - k + i)
        for earlier in places[:i]:
            if earlier == place:
                place = n - k + i
                break
        places[i] = place
    for i in range(k - 1, 0, -1):
        j = _draw_up_to(generator, i)
        places[i], places[j] = places[j], places[i]
    return places


@njit(nogil=True, cache=True)
def _hash_word(word: np.uint32, factor: np.uint32, growth: np.uint32) -> np.uint32:
    mixed = np.uint32(np.uint32(word ^ factor) * np.uint32(factor * growth))
    return np.uint32(mixed ^ (mixed >> np.uint32(16)))


@njit(nogil=True, cache=True)
def _spread_seed(seed: np.uint64) -> NDArray[np.uint32]:
    """Hash a seed, so that each bit of it changes all words of the pool."""
    pool = np.zeros(POOL, np.uint32)
    pool[0], pool[1] = np.uint32(seed & WORD), np.uint32(seed >> HALF)
    factor = SPREAD
    for i in range(POOL):
        pool[i] = _hash_word(pool[i], factor, SPREAD_GROWTH)
        factor = np.uint32(factor * SPREAD_GROWTH)
    for source in range(POOL):
        for target in range(POOL):
            if source != target:
                hashed = _hash_word(pool[source], factor, SPREAD_GROWTH)
                factor = np.uint32(factor * SPREAD_GROWTH)
                left, right = np.uint32(MIX_LEFT * pool[target]), np.uint32(MIX_RIGHT * hashed)
                mixed = np.uint32(left - right)
                pool[target] = mixed ^ (mixed >> np.uint32(16))
    return pool


@njit(nogil=True, cache=True)
def _seed_generator(seed: np.uint64) -> NDArray[np.uint64]:
    """Return PCG64's state and increment, high and low, and the half that waits, if there is one.

    The last two numbers are these 32 bits, and whether they are there.
    """
    pool, factor = _spread_seed(seed), READ
    drawn = np.zeros(POOL, np.uint64)
    for i in range(2 * POOL):
        word = np.uint64(_hash_word(pool[i % POOL], factor, READ_GROWTH))
        factor = np.uint32(factor * READ_GROWTH)
        drawn[i // 2] |= word << HALF if i % 2 else word
    generator = np.zeros(6, np.uint64)
    one = np.uint64(1)
    generator[2] = (drawn[2] << one) | (drawn[3] >> np.uint64(63))
    generator[3] = (drawn[3] << one) | one
    _advance(generator)
    _add(generator, drawn[0], drawn[1])
    _advance(generator)
    return generator


@njit(nogil=True, cache=True)
def _add(generator: NDArray[np.uint64], high: np.uint64, low: np.uint64) -> None:
    generator[1] += low
    generator[0] += high + np.uint64(generator[1] < low)


@njit(nogil=True, cache=True)
def _advance(generator: NDArray[np.uint64]) -> None:
    """Multiply the state by the factor, and add the increment."""
    high, low = generator[0], generator[1]
    generator[0] = _high_of_product(low, FACTOR_LOW) + high * FACTOR_LOW + low * FACTOR_HIGH
    generator[1] = low * FACTOR_LOW
    _add(generator, generator[2], generator[3])


@njit(nogil=True, cache=True)
def _high_of_product(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the upper 64 bits of a·b."""
    a_high, a_low, b_high, b_low = a >> HALF, a & WORD, b >> HALF, b & WORD
    middle = a_high * b_low + ((a_low * b_low) >> HALF)
    other = a_low * b_high + (middle & WORD)
    return np.uint64(a_high * b_high + (middle >> HALF) + (other >> HALF))


@njit(nogil=True, cache=True)
def _draw_word(generator: NDArray[np.uint64]) -> np.uint64:
    """Return 32 bits: of 64 that are drawn the lower ones, next time the upper ones."""
    if generator[5]:
        generator[5] = 0
        return np.uint64(generator[4])
    _advance(generator)
    turn = generator[0] >> np.uint64(58)
    both = generator[0] ^ generator[1]
    both = (both >> turn) | (both << ((np.uint64(64) - turn) & np.uint64(63)))
    generator[4], generator[5] = both >> HALF, 1
    return np.uint64(both & WORD)


@njit(nogil=True, cache=True)
def _draw_up_to(generator: NDArray[np.uint64], most: int) -> int:
    """Return a number from 0 to `most`, all equally likely."""
    if most == 0:
        return 0
    n = np.uint64(most + 1)
    product = _draw_word(generator) * n
    least = (WORD + np.uint64(1) - n) % n
    while (product & WORD) < least:
        product = _draw_word(generator) * n
    return int(np.int64(product >> HALF))
