// The order of an owner's tasks on the host.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/plan/expert_tasks.h"

namespace mkernel::kernels {

/// Sections that own their arrays.
class HostExpertSections {
 public:
  /// `near_rows`: [experts of the owner], as ExpertSectionCut has them; null where `cut` looks at none.
  HostExpertSections(const OwnedExperts& owned, const ExpertSectionCut& cut,
                     const std::int32_t* near_rows = nullptr) {
    std::int32_t blocks = 0;
    for (std::int32_t part = 0; part < cut.parts(owned.experts); ++part) {
      const std::int32_t here = cut.blocks(owned, near_rows, part);
      for (std::int32_t i = 0; i < cut.sections(here); ++i) {
        const std::int32_t before = cut.blocks_before(here, i);
        blocks_before_.push_back(blocks + before);
        first_block_.push_back(cut.first_block(owned, near_rows, part) + before);
        experts_.push_back(cut.expert(owned.experts, part));
      }
      blocks += here;
    }
    blocks_before_.push_back(blocks);
  }

  ExpertSections view() const {
    return {static_cast<std::int32_t>(experts_.size()), blocks_before_.data(), first_block_.data(),
            experts_.data()};
  }

 private:
  std::vector<std::int32_t> blocks_before_, first_block_, experts_;
};

/// Tasks that own what they look up, but for `owned`. Neither copied nor moved: `tasks` points into it.
struct HostExpertTasks {
  HostExpertTasks(const OwnedExperts& owned, HostExpertSections of, std::int32_t columns1,
                  std::int32_t columns2, std::int32_t lead)
      : sections(std::move(of)), tasks{owned, sections.view(), columns1, columns2, lead, nullptr} {
    for (std::int32_t step = 0; step <= tasks.sections.count; ++step)
      followers.push_back(tasks.followers(step));
    tasks.followers_at = followers.data();
  }
  HostExpertTasks(const HostExpertTasks&) = delete;
  HostExpertTasks& operator=(const HostExpertTasks&) = delete;

  HostExpertSections sections;
  std::vector<std::int32_t> followers;  ///< [sections + 1]
  ExpertTasks tasks;
};

}  // namespace mkernel::kernels
