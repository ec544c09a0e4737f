// Stands in for kernels/cuda/ptx/global.cuh (tests/support/on_host/cuda_names.h). Whoever reads a word with
// acquire may be waiting for it: others run first.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx/fence.cuh"
#include "tests/support/on_host/cuda_names.h"

namespace mkernel::kernels::ptx {

template <class Word>
Word ld_acquire_gpu(const Word* word) {
  mkernel::test::host_yield();
  return *word;
}
template <class Word>
Word ld_acquire_sys(const Word* word) {
  mkernel::test::host_yield();
  return *word;
}
/// Others run behind it: what it has read may be old by the next step of this thread.
template <class Word>
Word ld_relaxed_gpu(const Word* word) {
  const Word read = *word;
  mkernel::test::host_yield();
  return read;
}
inline void st_relaxed_gpu(std::uint64_t* word, std::uint64_t value) {
  *word = value;
}
template <class Word>
void st_release_gpu(Word* word, std::type_identity_t<Word> value) {
  *word = value;
}
template <class Word>
void st_release_sys(Word* word, std::type_identity_t<Word> value) {
  *word = value;
}
template <class Word>
void red_add_release_gpu(Word* word, std::type_identity_t<Word> value) {
  *word += value;
}
inline void st_relaxed_sys(std::uint64_t* word, std::uint64_t value, SysReleased) {
  *word = value;
}
inline void red_add_relaxed_sys(std::uint64_t* word, std::uint64_t value, SysReleased) {
  *word += value;
}
inline void red_add_relaxed_gpu(std::uint64_t* word, std::uint64_t value) {
  *word += value;
}
inline std::uint64_t atom_add_relaxed_gpu(std::uint64_t* word, std::uint64_t value) {
  return atomicAdd(word, value);
}
inline std::uint64_t atom_add_release_gpu(std::uint64_t* word, std::uint64_t value) {
  return atomicAdd(word, value);
}
inline std::uint64_t atom_cas_relaxed_gpu(std::uint64_t* word, std::uint64_t expected, std::uint64_t value) {
  const std::uint64_t before = *word;
  if (before == expected) *word = value;
  return before;
}
inline std::uint64_t atom_max_relaxed_gpu(std::uint64_t* word, std::uint64_t value) {
  const std::uint64_t before = *word;
  *word = std::max(before, value);
  return before;
}
inline std::uint32_t atom_exch_acquire_gpu(std::uint32_t* word, std::uint32_t value) {
  return atomicExch(word, value);
}
inline void st_relaxed_sys_v2(std::uint64_t* words, std::uint64_t low, std::uint64_t high, SysReleased) {
  words[0] = low;
  words[1] = high;
}

}  // namespace mkernel::kernels::ptx
