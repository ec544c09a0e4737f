#include "tests/support/gpu_ranks.h"

#include <string>
#include <utility>

#include "kernels/base/lent_workspace.h"

namespace mkernel::test {

GpuRanks::GpuRanks(const FabricOptions& fabric, const GemmShape& shape, const Make& make)
    : GpuRanks(std::shared_ptr<GpuWorld>(require(GpuWorld::make(fabric))), shape, make) {
  const std::uint64_t half_bytes = operation(0).requirements().lent_bytes;
  bind(require(world_->symmetric(kernels::lent_workspace_bytes(half_bytes))), 0);
}

GpuRanks::GpuRanks(std::shared_ptr<GpuWorld> world, const GemmShape& shape, const Make& make)
    : world_(std::move(world)), ranks_(world_->size()) {
  require_ok(each([&](int rank) { return make_rank(rank, shape, make); }));
}

void GpuRanks::bind(const std::vector<kernels::SymmetricView>& lent, std::uint32_t first_lane) {
  const auto workspace =
      require(world_->symmetric(operation(0).requirements().workspace_bytes, Contents::kWords));
  require_ok(each([&](int rank) {
    return operation(rank).bind(world_->group(rank), workspace[rank], lent[rank], first_lane);
  }));
  // The first launch of a kernel loads it, and a load waits for what runs on the GPU: for ranks that wait for
  // this one.
  require_ok(each([&](int rank) -> Status {
    MK_RETURN_IF_ERROR(fill(rank, 0));
    return stream(rank).synchronize();
  }));
}

Status GpuRanks::make_rank(int rank, const GemmShape& shape, const Make& make) {
  Rank& me = ranks_[rank];
  auto operation = make(*world_, rank);
  if (!operation.ok()) return operation.status();
  me.operation = std::move(*operation);
  me.operation->use_rings(world_->rings(rank));
  auto stream = bench::GpuStream::create();
  if (!stream.ok()) return stream.status();
  me.stream = std::move(*stream);
  auto operands = bench::GpuGemmCase::make(me.operation->kind(), shape, size(),
                                           world_->topology().ranks_per_node(), rank, 1, me.stream.get());
  if (!operands.ok()) return operands.status();
  me.operands = std::move(*operands);
  return {};
}

Status GpuRanks::run(int rank, const ExecutorOptions& options) {
  if (world_->shares_gpus()) {
    // Under compute-sanitizer a launch on another stream than the rank's last one waits for what runs on the
    // GPU, so for the ranks that wait for this one.
    const std::string of_rank = " of rank " + std::to_string(rank);
    MK_RETURN_IF_ERROR(world_->calls().run("launch" + of_rank, [&] {
      return operation(rank).enqueue(arguments(rank), options, stream(rank).get());
    }));
    MK_RETURN_IF_ERROR(
        world_->calls().run("wait for the launch" + of_rank, [&] { return stream(rank).synchronize(); }));
    return operation(rank).status();
  }
  MK_RETURN_IF_ERROR(stream(rank).synchronize());  // run() has a stream of its own
  return operation(rank).run(arguments(rank), options);
}

Status GpuRanks::verify(int rank) {
  auto check = ranks_[rank].operands->verify(0);
  if (!check.ok()) return check.status();
  if (check->wrong == 0) return {};
  return {StatusCode::kDataLoss, operation(rank).signature() + ": " + std::to_string(check->wrong) + " of " +
                                     std::to_string(check->elements) + " elements wrong, one at " +
                                     std::to_string(check->first_wrong)};
}

void GpuRanks::check(int launches) {
  CAPTURE(operation(0).signature());
  const bool alike = operation(0).kind() == OpKind::kGemmAr;
  std::vector<std::uint64_t> digests(ranks_.size());
  for (int launch = 0; launch < launches; ++launch) {
    const auto run_filled = [&](int rank) -> Status {
      MK_RETURN_IF_ERROR(fill(rank, launch));
      return run(rank);
    };
    const auto judge = [&](int rank) -> Status {
      MK_RETURN_IF_ERROR(verify(rank));
      auto digest = this->digest(rank);
      if (!digest.ok()) return digest.status();
      digests[rank] = *digest;
      return {};
    };
    // Launches of the ranks are not aligned: whoever is filled first begins, also with the next launch. But
    // judging may free memory, which waits for the launches of all ranks on the GPU.
    if (world_->shares_gpus()) require_ok(each(run_filled));
    require_ok(each([&](int rank) -> Status {
      if (!world_->shares_gpus()) MK_RETURN_IF_ERROR(run_filled(rank));
      return judge(rank);
    }));
    REQUIRE(world_->fabric().error() == "");
    if (!alike) continue;
    for (const std::uint64_t digest : digests) REQUIRE(digest == digests[0]);
  }
}

void GpuRanks::check_replays(int rounds, int replays) {
  CAPTURE(operation(0).signature());
  std::vector<bench::GpuGraph> graphs(ranks_.size());
  require_ok(each([&](int rank) -> Status {
    auto graph = bench::GpuGraph::capture(stream(rank), [&] {
      return operation(rank).enqueue(arguments(rank), kGpuOptions, stream(rank).get());
    });
    if (graph.ok()) graphs[rank] = std::move(*graph);
    return graph.status();
  }));
  for (int round = 0; round < rounds; ++round) {
    require_ok(each([&](int rank) -> Status {
      for (int i = 0; i < replays; ++i) {
        MK_RETURN_IF_ERROR(fill(rank, static_cast<std::uint64_t>(round * replays + i)));
        MK_RETURN_IF_ERROR(graphs[rank].launch(stream(rank)));
      }
      MK_RETURN_IF_ERROR(stream(rank).synchronize());
      return operation(rank).status();
    }));
    require_ok(each([&](int rank) { return verify(rank); }));
  }
}

}  // namespace mkernel::test
