// The wait for links that are modelled.
#include <doctest/doctest.h>

#include <cstdint>

#include "tests/support/on_host/cuda_names.h"

// Device code, behind CUDA's names.
#include "kernels/cuda/comm/paced_links.cuh"
#include "kernels/cuda/comm/paced_links_of.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

TEST_CASE("what is sent takes the links one after the other, and then the latency") {
  std::uint64_t free_ns = 0;
  const PacedLinks links{&free_ns, 1'000'000, 3'000'000, 1'000'000'000};  // a nanosecond for a byte
  const std::uint64_t begin = ptx::globaltimer();
  await_links(links, 2'000'000);
  const std::uint64_t first = free_ns;
  CHECK(first >= begin + 2'000'000);
  CHECK(ptx::globaltimer() >= first + 3'000'000);
  free_ns = ptx::globaltimer() + 500'000'000;  // somebody else's bytes
  const std::uint64_t busy = free_ns;
  await_links(links, 1'000'000);
  CHECK(free_ns == busy + 1'000'000);
  CHECK(ptx::globaltimer() >= free_ns + 3'000'000);
}

TEST_CASE("nobody waits longer than he may, nor at all where no links are modelled") {
  const std::uint64_t begin = ptx::globaltimer(), busy = begin + 3'600'000'000'000;
  std::uint64_t free_ns = busy;
  await_links({&free_ns, 1'000'000, 0, 1'000'000}, 1000);
  CHECK(free_ns == busy + 1000);
  await_links({&free_ns, 0, 0, 0}, 1000);
  await_links({}, 1000);
  CHECK(free_ns == busy + 1000);
  CHECK(ptx::globaltimer() < busy);
}

TEST_CASE("links of a machine: what a byte takes, within what a word holds") {
  Machine machine = kH200;
  machine.paced_links = 88.5e9;
  machine.paced_latency = 2e-6;
  CHECK(paced_links_of(machine, nullptr).fs_per_byte == 11299);
  CHECK(paced_links_of(machine, nullptr).latency_ns == 2000);
  machine.paced_links = 1;
  CHECK(paced_links_of(machine, nullptr).fs_per_byte == 4'000'000'000);
  machine.paced_links = 1e30;
  CHECK(paced_links_of(machine, nullptr).fs_per_byte == 1);
}

}  // namespace
}  // namespace mkernel::test
