#include "tools/mkrun/job.h"

#include <cstring>
#include <numeric>
#include <span>

namespace mkernel::mkrun {

void Job::make_out(std::vector<std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  out_shape_ = std::move(shape);
  out_.resize(static_cast<std::size_t>(elements));
}

Status Job::save(const Options& options, Outputs& outputs) {
  for (ExecutorArray* result : results_) MK_RETURN_IF_ERROR(result->fetch());
  return outputs.write("--out", out_shape_, out_, options.dtype);
}

namespace {

template <class Value>
Result<std::vector<Value>> gather_values(Group& group, const Value& mine) {
  const auto all = group.exchange(std::as_bytes(std::span(&mine, 1)));
  if (!all.ok()) return all.status();
  std::vector<Value> values;
  for (const auto& bytes : all.value()) {
    if (bytes.size() != sizeof(mine))
      return Status(StatusCode::kInternal, "another program takes part in the group");
    std::memcpy(&values.emplace_back(), bytes.data(), sizeof(mine));
  }
  return values;
}

}  // namespace

Result<std::vector<std::int64_t>> gather(Group& group, std::int64_t mine) {
  return gather_values(group, mine);
}

Status check_outputs(Group& group, const Outputs& outputs) {
  const auto claims = gather_values(group, outputs.claims());
  if (!claims.ok()) return claims.status();
  std::int64_t other = -1;
  for (std::size_t rank = 0; rank < claims->size() && other < 0; ++rank) {
    if (rank != group.rank() && !outputs.shared_with(claims.value()[rank]).empty())
      other = static_cast<std::int64_t>(rank);
  }
  // Only the ranks concerned see it; all have to stop.
  const auto others = gather(group, other);
  if (!others.ok()) return others.status();
  for (std::size_t rank = 0; rank < others->size(); ++rank) {
    if (others.value()[rank] < 0) continue;
    return {StatusCode::kInvalidArgument, "ranks " + std::to_string(rank) + " and " +
                                              std::to_string(others.value()[rank]) +
                                              " write one file: {rank} in its name tells them apart"};
  }
  return {};
}

Result<std::int64_t> total_of(
    const std::vector<std::int64_t>& parts, const std::string& name, std::int64_t given,
    const std::function<std::int64_t(std::int64_t rank, std::int64_t total)>& wanted) {
  const std::int64_t sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  const std::int64_t total = given > 0 ? given : sum;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const std::int64_t share = wanted(static_cast<std::int64_t>(rank), total);
    if (parts[rank] == share) continue;
    return Status(StatusCode::kInvalidArgument,
                  "rank " + std::to_string(rank) + " brings " + std::to_string(parts[rank]) + " of " + name +
                      " = " + std::to_string(total) + (given > 0 ? " (--" + name + ")" : "") +
                      ", its share is " + std::to_string(share));
  }
  return total;
}

Result<std::int64_t> sequence_of(Group& group, const Options& options, std::int64_t mine) {
  const auto world = static_cast<std::int64_t>(group.world_size());
  const auto parts = gather(group, mine);
  if (!parts.ok()) return parts.status();
  auto sequence = total_of(parts.value(), "sequence", options.sequence, [&](auto rank, auto total) {
    if (!options.causal) return block_range(total, world, rank).size();
    return block_range(total, 2 * world, rank).size() +
           block_range(total, 2 * world, 2 * world - 1 - rank).size();
  });
  if (!sequence.ok()) return sequence.status().with_context("positions of --q");
  return sequence;
}

}  // namespace mkernel::mkrun
