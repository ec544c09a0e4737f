// The order in which tiles of a mixture of experts are handed out.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/plan/expert_table.h"
#include "kernels/plan/host_expert_tasks.h"
#include "kernels/plan/layer_tasks.h"

namespace mkernel::kernels {
namespace {

using Ints = std::vector<std::int32_t>;

}  // namespace

TEST_CASE("experts: tasks, columns outside and blocks inside, the second product behind its lead") {
  const Ints counts{9, 0, 3};  // two blocks, none, one
  const HostExpertTable table({3, 1}, {8, 4}, counts);
  const auto text = [&](std::int32_t columns2, std::int32_t lead) {
    const OwnedExperts owned = table.view().of_rank(0);
    const HostExpertTasks list(owned, {owned, {}}, 2, columns2, lead);
    std::string all;
    for (std::int32_t i = 0; i < list.tasks.tasks(); ++i) {
      const auto task = list.tasks.task(i);
      all += (task.second ? " B" : " A") + std::to_string(task.expert) + std::to_string(task.block) +
             std::to_string(task.column);
    }
    return all;
  };
  CHECK(text(0, 0) == " A000 A010 A001 A011 A220 A221");
  CHECK(text(1, 0) == " A000 A010 A001 A011 B000 B010 A220 A221 B220");
  CHECK(text(1, 1) == " A000 A010 A001 A011 A220 A221 B000 B010 B220");
}

TEST_CASE("experts: every tile is a task once, in sections, the second product behind the first one") {
  std::mt19937_64 random(7);
  for (std::int32_t round = 0; round < 300; ++round) {
    const auto experts = static_cast<std::int32_t>(1 + random() % 9);
    const auto columns1 = static_cast<std::int32_t>(1 + random() % 4);
    const auto columns2 = static_cast<std::int32_t>(random() % 4),
               lead = static_cast<std::int32_t>(random() % 20);
    Ints rows, near_rows;
    for (std::int32_t e = 0; e < experts; ++e) {
      rows.push_back(random() % 3 == 0 ? 0 : static_cast<std::int32_t>(random() % 40));
      const auto some = static_cast<std::int32_t>(random() % 41);
      near_rows.push_back(random() % 4 == 0 ? rows.back() : std::min(some, rows.back()));
    }
    const ExpertSectionCut cut{.most = round % 3 == 0 ? 1 << 30 : 2 + 2 * (round % 2),
                               .apart = round % 4 < 2};
    const HostExpertTable made({experts, 1}, {8, 4}, rows);
    const OwnedExperts owned = made.view().of_rank(0);
    const HostExpertTasks list(owned, {owned, cut, near_rows.data()}, columns1, columns2, lead);
    CHECK(list.sections.view().count <= cut.most_sections(owned.experts, owned.all_blocks()));
    std::set<std::tuple<bool, std::int32_t, std::int32_t>> seen;
    // By first block of a section: its last task of the first product.
    std::map<std::int32_t, std::int32_t> last_first;
    std::int32_t firsts = 0;
    for (std::int32_t i = 0; i < list.tasks.tasks(); ++i) {
      const auto task = list.tasks.task(i);
      REQUIRE(task.column < (task.second ? columns2 : columns1));
      CHECK(owned.expert_of(task.block) == task.expert);
      CHECK(owned.expert_of(task.first_block) == task.expert);
      CHECK(task.first_block <= task.block);
      CHECK(task.block < task.first_block + task.blocks);
      CHECK(task.blocks <= cut.most);
      CHECK(seen.emplace(task.second, task.block, task.column).second);
      if (!task.second) {
        last_first[task.first_block] = ++firsts;
        continue;
      }
      for (std::int32_t column = 0; column < columns1; ++column)
        CHECK(seen.contains({false, task.block, column}));
      const bool led =
          firsts == columns1 * owned.all_blocks() || firsts >= last_first[task.first_block] + lead;
      CHECK(led);
    }
    CHECK(seen.size() == static_cast<std::size_t>((columns1 + columns2) * owned.all_blocks()));
  }
}

TEST_CASE("experts: sections go through all columns, in the order of near and far rows") {
  // Blocks of eight rows: experts of 5, 2, 0, 3 and 1 blocks.
  const HostExpertTable table({5, 1}, {8, 4}, Ints{37, 16, 0, 24, 5});
  const OwnedExperts owned = table.view().of_rank(0);
  const auto text = [&](const ExpertSectionCut& cut, const Ints& near_rows) {
    const HostExpertSections sections(owned, cut, near_rows.data());
    std::string all;
    for (std::int32_t i = 0; i < sections.view().count; ++i) {
      const std::int32_t first = sections.view().first_block[i];
      CHECK(owned.expert_of(first) == sections.view().experts[i]);
      all += (i > 0 ? " " : "") + std::to_string(first) + "+" + std::to_string(sections.view().blocks(i));
    }
    CHECK(sections.view().blocks_before[sections.view().count] == owned.all_blocks());
    return all;
  };
  CHECK(text({}, {}) == "0+5 5+2 7+3 10+1");
  CHECK(text({.most = 4}, {}) == "0+4 4+1 5+2 7+3 10+1");
  CHECK(text({.most = 2}, {}) == "0+2 2+2 4+1 5+2 7+2 9+1 10+1");
  // Near: two blocks and a half of the first expert; all of the second one; none of the fourth; all of the
  // last one, whose block is not full. Those of the first two experts come before all far ones.
  CHECK(text({.apart = true}, {20, 16, 0, 0, 5}) == "0+2 5+2 2+3 7+3 10+1");
  CHECK(text({.most = 2, .apart = true}, {20, 16, 0, 0, 5}) == "0+2 5+2 2+2 4+1 7+2 9+1 10+1");
  CHECK(text({.apart = true}, {0, 8, 0, 8, 4}) == "5+1 0+5 6+1 8+2 10+1 7+1");

  const HostExpertTasks list(owned, {owned, {.most = 4}}, 2, 0, 0);
  std::string all;
  for (std::int32_t i = 0; i < 10; ++i)
    all += " " + std::to_string(list.tasks.task(i).block) + "." + std::to_string(list.tasks.task(i).column);
  CHECK(all == " 0.0 1.0 2.0 3.0 0.1 1.1 2.1 3.1 4.0 4.1");
}

TEST_CASE("experts: the shared expert's first product comes first, its second one behind the lead") {
  const HostExpertTable table({2, 1}, {8, 4}, Ints{9, 3});  // two blocks, one
  const auto text = [&](const SharedExpertTiles& shared, std::int32_t lead) {
    const OwnedExperts owned = table.view().of_rank(0);
    const HostExpertTasks of_experts(owned, {owned, {}}, 1, 1, lead);
    const LayerTasks list{shared, of_experts.tasks};
    CHECK(list.early() == shared.blocks * shared.columns1);
    std::string all;
    for (std::int32_t i = 0; i < list.tasks(); ++i) {
      const auto task = list.task(i);
      all += (task.second ? " B" : " A") + std::to_string(task.block) + std::to_string(task.column) +
             (task.shared ? "s" : "");
    }
    return all;
  };
  CHECK(text({0, 3, 1}, 2) == " A00 A10 A20 B00 B10 B20");
  CHECK(text({2, 2, 1}, 2) == " A00s A10s A01s A11s A00 A10 B00s B10s A20 B00 B10 B20");
  CHECK(text({1, 1, 2}, 0) == " A00s B00s B01s A00 A10 B00 B10 A20 B20");
  CHECK(text({1, 1, 1}, 99) == " A00s A00 A10 A20 B00 B10 B20 B00s");
  // Without rows of experts, and before there is a table.
  const HostExpertTable none({2, 1}, {8, 4}, Ints{0, 0});
  const OwnedExperts nobodys = none.view().of_rank(0);
  const HostExpertTasks no_tasks(nobodys, {nobodys, {}}, 1, 1, 5);
  const LayerTasks alone{{1, 1, 1}, no_tasks.tasks}, early{{1, 1, 1}, {}};
  CHECK(alone.tasks() == 2);
  CHECK(alone.task(1).second);
  CHECK(early.task(0).shared);
}

}  // namespace mkernel::kernels
