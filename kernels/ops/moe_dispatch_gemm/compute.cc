// Tiles of the two products.
#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/moe_dispatch_gemm/roles.h"

namespace mkernel::kernels {
namespace {

constexpr const char* kComputeRole = "compute";

}  // namespace

Status MoeLaunch::compute(int thread) {
  layer_.widen(arguments_, thread, launch_.compute_threads);
  signal_add(widened_, 1);
  MK_RETURN_IF_ERROR(wait(widened_.value, static_cast<std::uint64_t>(launch_.compute_threads),
                          {kComputeRole, "widened weights", me_}, 1));
  const ExpertScratch scratch(plan_);
  const LayerTasks early{plan_.shared_expert_tiles(arguments_.tokens), {}};  // needs no table
  MK_RETURN_IF_ERROR(compute_tiles(early_, early, 0, scratch));
  MK_RETURN_IF_ERROR(wait_table(kComputeRole));
  if (work_ == nullptr) return {};
  MK_RETURN_IF_ERROR(compute_tiles(work_->tiles, work_->tasks, work_->tasks.early(), scratch));
  MK_RETURN_IF_ERROR(wait_placed(kComputeRole));
  return sum();
}

/// Tasks from `first` on, as many as `work` hands out.
Status MoeLaunch::compute_tiles(WorkCounter& work, const LayerTasks& tasks, std::int32_t first,
                                const ExpertScratch& scratch) {
  for (std::int32_t number = work.next(); number < work.all(); number = work.next()) {
    if (launch_.roles.stop()) return {};
    const ExpertTasks::Task task = tasks.task(first + number);
    MK_RETURN_IF_ERROR(task.second ? second_tile(task, scratch) : first_tile(task, scratch));
  }
  return {};
}

OwnedExperts::Block MoeLaunch::rows_of(const ExpertTasks::Task& task) const {
  return task.shared ? exchange_.shared_block(static_cast<std::int32_t>(arguments_.tokens), task.block)
                     : work_->mine.block(task.block);
}

Status MoeLaunch::first_tile(const ExpertTasks::Task& task, const ExpertScratch& scratch) const {
  if (!task.shared) {
    MK_RETURN_IF_ERROR(wait(word(me_, exchange_.arrived(task.block)), exchange_.arrived_count(launch_.epoch),
                            {kComputeRole, "rows of a block"}, 2));
  }
  const OwnedExperts::Block block = rows_of(task);
  const std::int64_t hidden = plan_.shape.hidden;
  if (task.shared) {
    const std::byte* x = static_cast<const std::byte*>(arguments_.x) + block.first_row * hidden * 2;
    scratch.load(plan_.shape.dtype, x, block.rows, hidden, static_cast<std::uint64_t>(hidden) * 2);
  } else {
    scratch.load(plan_.shape.dtype, memory(me_) + exchange_.row(block.first_row), block.rows, hidden,
                 exchange_.row_bytes);
  }
  layer_.of(task).first(block.rows, plan_.columns(task), scratch);
  plan_.gated() ? store_hidden(task, scratch) : store_finished(task, scratch);
  return {};
}

Status MoeLaunch::second_tile(const ExpertTasks::Task& task, const ExpertScratch& scratch) const {
  const std::int32_t columns = task.shared ? exchange_.shared_columns1 : exchange_.columns1;
  for (std::int32_t column = 0; column < columns; ++column) {
    MK_RETURN_IF_ERROR(
        wait(hidden_word(task, column), stamp(), {kComputeRole, "a tile of the first product", me_}, 3));
  }
  const OwnedExperts::Block block = rows_of(task);
  scratch.load(plan_.shape.dtype, hidden_row(task, block.first_row), block.rows,
               task.shared ? plan_.shape.shared_intermediate : plan_.shape.intermediate,
               task.shared ? exchange_.shared_bytes : exchange_.hidden_bytes);
  layer_.of(task).second(block.rows, plan_.columns(task), scratch);
  store_finished(task, scratch);
  return {};
}

std::uint64_t& MoeLaunch::hidden_word(const ExpertTasks::Task& task, std::int32_t column) const {
  return word(me_, task.shared ? exchange_.shared_hidden_word(task.block, column)
                               : exchange_.hidden_word(task.block, column));
}

std::byte* MoeLaunch::hidden_row(const ExpertTasks::Task& task, std::int32_t row) const {
  return memory(me_) + (task.shared ? exchange_.shared_hidden(row) : exchange_.hidden(row));
}

void MoeLaunch::store_hidden(const ExpertTasks::Task& task, const ExpertScratch& scratch) const {
  const OwnedExperts::Block block = rows_of(task);
  const Range columns = plan_.columns(task);
  for (std::int32_t row = 0; row < block.rows; ++row) {
    narrow(plan_.shape.dtype, scratch.product.get() + row * scratch.stride,
           hidden_row(task, block.first_row + row) + columns.begin * 2,
           static_cast<std::size_t>(columns.size()));
  }
  signal_set(hidden_word(task, task.column), stamp());
}

ExpertRowOrigin MoeLaunch::origin(const ExpertTasks::Task& task, std::int32_t row) const {
  if (task.shared) return {me_, exchange_.shared_entry(row)};
  return *reinterpret_cast<const ExpertRowOrigin*>(memory(me_) + exchange_.origin(row));
}

/// To where the rows are summed. Who stores the last column tile of a block signals its rows: it has acquired
/// what the threads of the others released.
void MoeLaunch::store_finished(const ExpertTasks::Task& task, const ExpertScratch& scratch) const {
  const OwnedExperts::Block block = rows_of(task);
  const Range columns = plan_.columns(task);
  for (std::int32_t row = 0; row < block.rows; ++row) {
    const ExpertRowOrigin to = origin(task, block.first_row + row);
    narrow(plan_.shape.dtype, scratch.product.get() + row * scratch.stride,
           memory(to.rank) + exchange_.finished(to.entry) + columns.begin * 2,
           static_cast<std::size_t>(columns.size()));
  }
  const std::uint64_t stored =
      task.shared ? exchange_.shared_stored(task.block) : exchange_.stored(task.block);
  if (!exchange_.last_column(signal_add(word(me_, stored), 1))) return;
  for (std::int32_t row = 0; row < block.rows; ++row) {
    const ExpertRowOrigin to = origin(task, block.first_row + row);
    signal_set(word(to.rank, exchange_.finished_word(to.entry)), stamp());
  }
}

}  // namespace mkernel::kernels
