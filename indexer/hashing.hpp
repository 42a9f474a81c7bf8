// The one hash of a key, and which of its bits decide what. Twin: hashing.py.
#pragma once

#include <cstdint>

namespace headrace {

// hash = route 16 | shard 6 | low 42. Owner and shard are picked by disjoint bits, so keys that share an owner are
// still spread over shards; the position within a shard is picked by all bits, see probe_home.
constexpr int kRouteBits = 16;
constexpr int kShardBits = 6;
constexpr int kLowBits = 42;
constexpr int kMaxShards = 1 << kShardBits;

inline std::uint64_t splitmix_finalise(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

inline std::uint64_t murmur_finalise(std::uint64_t x) {
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
    return x ^ (x >> 33);
}

// What a table and the missing flag contribute; computed once a table.
inline std::uint64_t key_seed(std::uint32_t table_uid, bool missing) {
    return splitmix_finalise(((static_cast<std::uint64_t>(table_uid) << 1) | (missing ? 1u : 0u)) +
                             0x9E3779B97F4A7C15u);
}

// A bijection of the id for every seed. The seed enters twice, so that two tables are not translates of each other.
inline std::uint64_t mix64_seeded(std::uint64_t seed, std::uint64_t id) {
    return murmur_finalise(splitmix_finalise(id ^ seed) + seed);
}

inline std::uint64_t mix64(std::uint32_t table_uid, bool missing, std::uint64_t id) {
    return mix64_seeded(key_seed(table_uid, missing), id);
}

inline std::uint32_t route_bucket(std::uint64_t hash) {
    return static_cast<std::uint32_t>(hash >> (kShardBits + kLowBits));
}

inline std::uint32_t shard_bits(std::uint64_t hash) {
    return static_cast<std::uint32_t>(hash >> kLowBits) & (kMaxShards - 1);
}

// mix64 is known and can be inverted, so whoever chooses ids chooses hashes, and plain ids are chosen anyway. An index
// therefore enters its memory through an odd multiplier of its own: without it nobody can tell which ids or hashes
// meet. (Keys of one hash do: there is one of them a table.) The folds are for regular numbers: after a mere product
// the multiples of some strides lie close together, with one multiplier in twelve.

// For scratch tables: the halves of the 128-bit product folded, and multiplied again.
inline std::uint64_t scattered(std::uint64_t x, std::uint64_t multiplier) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(x) * multiplier;
    return (static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64)) * multiplier;
}

// For entries: a bijection, so that it can stand for the hash.
inline std::uint64_t permuted(std::uint64_t x, std::uint64_t multiplier) {
    x *= multiplier;
    x = (x ^ (x >> 32)) * multiplier;
    return (x ^ (x >> 32)) * multiplier;
}

// --- the way back, for what stores permuted hashes and gives out ids

// Of an odd number modulo 2^64, by Newton's iteration: each step doubles the bits that are right, 3 at first.
constexpr std::uint64_t inverse(std::uint64_t odd) {
    std::uint64_t x = odd;
    for (int step = 0; step < 5; ++step) x *= 2 - odd * x;
    return x;
}

// x ^ (x >> shift), undone.
constexpr std::uint64_t unfold(std::uint64_t x, int shift) {
    for (int done = shift; done < 64; done *= 2) x ^= x >> done;
    return x;
}

inline std::uint64_t unpermuted(std::uint64_t position, std::uint64_t inverse_multiplier) {
    const std::uint64_t x = unfold(position * inverse_multiplier, 32) * inverse_multiplier;
    return unfold(x, 32) * inverse_multiplier;
}

// The id whose mix64_seeded is `hash`.
inline std::uint64_t unmix64_seeded(std::uint64_t seed, std::uint64_t hash) {
    std::uint64_t x = unfold(hash, 33) * inverse(0xC4CEB9FE1A85EC53u);
    x = unfold(x, 33) * inverse(0xFF51AFD7ED558CCDu);
    x = unfold(x, 33) - seed;
    x = unfold(x, 31) * inverse(0x94D049BB133111EBu);
    x = unfold(x, 27) * inverse(0xBF58476D1CE4E5B9u);
    return unfold(x, 30) ^ seed;
}

// Where probing starts: floor(position * capacity / 2^64), any capacity. Homes rise with the position, a permuted hash,
// so that a rehash reads and writes both arrays in order.
inline std::uint64_t probe_home(std::uint64_t position, std::uint64_t capacity) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(position) * capacity) >> 64);
}

}  // namespace headrace
