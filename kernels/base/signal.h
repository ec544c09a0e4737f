// Signal words between the ranks of a node: 64-bit counts in symmetric memory, zeroed once, only growing.
// They play the flags that a GPU stores to its peers over NVLink. Waiting on one is wait_at_least().
#pragma once

#include <atomic>
#include <cstdint>

namespace mkernel::kernels {

/// A signal word alone on its cache line: its writer and its neighbours' writers do not disturb each other.
struct alignas(64) SignalWord {
  std::uint64_t value;
};
static_assert(sizeof(SignalWord) == 64);

/// Publishes `value`: everything this thread wrote before is visible to whoever reads it with acquire. One
/// writer per word.
inline void signal_set(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(word).store(value, std::memory_order_release);
}
inline void signal_set(SignalWord& word, std::uint64_t value) {
  signal_set(word.value, value);
}

/// Adds to a word with several writers and returns what it was; release as above, and acquire: who brings a
/// word to its last value sees what all other writers wrote before they added.
inline std::uint64_t signal_add(std::uint64_t& word, std::uint64_t value) {
  return std::atomic_ref<std::uint64_t>(word).fetch_add(value, std::memory_order_acq_rel);
}
inline std::uint64_t signal_add(SignalWord& word, std::uint64_t value) {
  return signal_add(word.value, value);
}

}  // namespace mkernel::kernels
