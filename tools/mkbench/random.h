// Seeded random tensors: element i of tensor `seed` is a function of (seed, i) alone, so that every rank can
// make any other rank's input for its reference without asking.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mkernel::bench {

/// A well-mixed 64-bit value of (seed, index).
constexpr std::uint64_t mix(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Uniform in [-1, 1) with 24 bits.
constexpr float uniform(std::uint64_t seed, std::uint64_t index) {
  return static_cast<float>(static_cast<std::int32_t>(mix(seed, index) >> 40) - (1 << 23)) / (1 << 23);
}

/// One seed out of what distinguishes a tensor: operation, iteration, rank, operand.
constexpr std::uint64_t seed_of(std::uint64_t op, std::uint64_t iteration, std::uint64_t rank,
                                std::uint64_t operand) {
  return mix(mix(mix(op, iteration), rank), operand);
}

}  // namespace mkernel::bench
