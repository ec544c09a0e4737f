#include "kernels/plan/attention_tasks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <tuple>
#include <vector>

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;
using Place = AttentionTasks::Place;

std::vector<Place> places(const AttentionTasks& tasks) {
  std::vector<Place> all;
  for (std::int32_t i = 0; i < tasks.tasks(); ++i) all.push_back(tasks.place(i));
  return all;
}

constexpr std::int64_t kHeadBytes = std::int64_t{2} * 128 * 2;  // of a key and a value

}  // namespace

TEST_CASE("attention tasks: every tile of every head once, whatever the sections") {
  for (const auto& [batch, heads, kv_heads] :
       {std::tuple{1, 1, 1}, {3, 5, 5}, {2, 8, 2}, {1, 40, 40}, {7, 6, 1}, {4, 64, 8}}) {
    for (const std::int32_t queries : {1, 128, 129, 2000}) {
      for (const std::int64_t keys : {1, 10000, 40000, 200000}) {
        const AttentionTasks tasks(batch, heads, kv_heads, attention_query_tiles(queries), keys * kHeadBytes);
        std::set<std::tuple<int, int, int>> seen;
        for (const Place& place : places(tasks)) {
          CHECK((place.batch >= 0 && place.batch < batch && place.head >= 0 && place.head < heads));
          CHECK((place.tile >= 0 && place.tile * kAttentionTileQueries < queries));
          seen.emplace(place.batch, place.head, place.tile);
        }
        CHECK(seen.size() == static_cast<std::size_t>(batch * heads * ((queries + 127) / 128)));
        CHECK(tasks.tasks() == static_cast<std::int32_t>(seen.size()));
      }
    }
  }
}

TEST_CASE("attention tasks: keys of a section fit the L2, sections are equal, the last queries come first") {
  // 64 heads of 3,072 positions: 21 of them fit, so there are four sections of 16.
  const std::vector<Place> all = places(AttentionTasks(4, 16, 16, 24, 3072 * kHeadBytes));
  constexpr std::size_t kSection = 16 * 24;
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].batch == static_cast<int>(i / kSection));
    CHECK(all[i].tile == 23 - static_cast<int>(i % kSection / 16));
  }
}

TEST_CASE("attention tasks: heads that share keys are in one section, next to each other") {
  const std::vector<Place> all = places(AttentionTasks(1, 64, 8, 64, 8192 * kHeadBytes));
  for (std::size_t i = 0; i + 1 < all.size(); ++i)
    if (i % 64 != 63) CHECK(all[i + 1].head == all[i].head + 1);
  const std::vector<Place> long_ones = places(AttentionTasks(1, 16, 2, 2, 100000 * kHeadBytes));
  for (std::size_t i = 0; i < long_ones.size(); ++i) CHECK(long_ones[i].head / 8 == static_cast<int>(i) / 16);
}

TEST_CASE("attention tasks: with a causal mask multiprocessors finish together") {
  // Each takes the next task when it has time; a task takes as long as it has tiles of keys.
  for (const std::int32_t queries : {3072, 12288}) {
    const AttentionTasks tasks(4, 16, 16, attention_query_tiles(queries), queries * kHeadBytes);
    std::vector<std::int64_t> busy(132, 0);
    for (const Place& place : places(tasks)) *std::min_element(busy.begin(), busy.end()) += place.tile + 1;
    const auto total = std::accumulate(busy.begin(), busy.end(), std::int64_t{0});
    const double longest = static_cast<double>(*std::max_element(busy.begin(), busy.end()));
    CHECK(longest * 132 <= 1.02 * static_cast<double>(total));
  }
}

TEST_CASE("attention tasks: which keys queries see") {
  CHECK(attention_visible_keys(10, 10, 10, true) == 10);
  CHECK(attention_visible_keys(3, 10, 10, true) == 3);
  CHECK(attention_visible_keys(3, 10, 12, true) == 5);
  CHECK(attention_visible_keys(3, 10, 5, true) == 0);
  CHECK(attention_visible_keys(3, 10, 5, false) == 5);
}

TEST_CASE("attention tasks: tiles of 160 keys where they waste no more than those of 128") {
  CHECK(attention_tile_keys(64, false, 1) == 192);
  CHECK(attention_tile_keys(64, true, 100000) == 192);
  CHECK(attention_tile_keys(128, true, 160) == 128);
  for (const std::int64_t keys : {1, 128, 1003, 3072}) CHECK(attention_tile_keys(128, false, keys) == 128);
  for (const std::int64_t keys : {160, 300, 6144, 75600}) CHECK(attention_tile_keys(128, false, keys) == 160);
}

}  // namespace mkernel::test
