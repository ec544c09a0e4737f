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
  MK_RETURN_IF_ERROR(wait_table(kComputeRole));
  if (work_ == nullptr) return {};
  const ExpertScratch scratch(plan_);
  WorkCounter& work = work_->tiles;
  for (std::int32_t number = work.next(); number < work.all(); number = work.next()) {
    if (launch_.roles.stop()) return {};
    const ExpertTasks::Task task = work_->tasks.tasks.task(number);
    MK_RETURN_IF_ERROR(task.second ? second_tile(task, scratch) : first_tile(task, scratch));
  }
  MK_RETURN_IF_ERROR(wait_placed(kComputeRole));
  return sum();
}

Status MoeLaunch::first_tile(const ExpertTasks::Task& task, const ExpertScratch& scratch) const {
  MK_RETURN_IF_ERROR(wait(word(me_, exchange_.arrived(task.block)), exchange_.arrived_count(launch_.epoch),
                          {kComputeRole, "rows of a block"}, 2));
  const OwnedExperts::Block block = work_->mine.block(task.block);
  scratch.load(plan_.shape.dtype, memory(me_) + exchange_.row(block.first_row), block.rows,
               plan_.shape.hidden, exchange_.row_bytes);
  layer_.first(task.expert, block.rows, plan_.columns(false, task.column), scratch);
  plan_.gated() ? store_hidden(task, scratch) : store_finished(task, scratch);
  return {};
}

Status MoeLaunch::second_tile(const ExpertTasks::Task& task, const ExpertScratch& scratch) const {
  for (std::int32_t column = 0; column < exchange_.columns1; ++column) {
    MK_RETURN_IF_ERROR(wait(word(me_, exchange_.hidden_word(task.block, column)), stamp(),
                            {kComputeRole, "a tile of the first product", me_}, 3));
  }
  const OwnedExperts::Block block = work_->mine.block(task.block);
  scratch.load(plan_.shape.dtype, memory(me_) + exchange_.hidden(block.first_row), block.rows,
               plan_.shape.intermediate, exchange_.hidden_bytes);
  layer_.second(task.expert, block.rows, plan_.columns(true, task.column), scratch);
  store_finished(task, scratch);
  return {};
}

void MoeLaunch::store_hidden(const ExpertTasks::Task& task, const ExpertScratch& scratch) const {
  const OwnedExperts::Block block = work_->mine.block(task.block);
  const Range columns = plan_.columns(false, task.column);
  for (std::int32_t row = 0; row < block.rows; ++row) {
    narrow(plan_.shape.dtype, scratch.product.get() + row * scratch.stride,
           memory(me_) + exchange_.hidden(block.first_row + row) + columns.begin * 2,
           static_cast<std::size_t>(columns.size()));
  }
  signal_set(word(me_, exchange_.hidden_word(task.block, task.column)), stamp());
}

/// To where the rows are summed. Who stores the last column tile of a block signals its rows: it has acquired
/// what the threads of the others released.
void MoeLaunch::store_finished(const ExpertTasks::Task& task, const ExpertScratch& scratch) const {
  const OwnedExperts::Block block = work_->mine.block(task.block);
  const Range columns = plan_.columns(task.second, task.column);
  for (std::int32_t row = 0; row < block.rows; ++row) {
    const ExpertRowOrigin& to = origin(block.first_row + row);
    narrow(plan_.shape.dtype, scratch.product.get() + row * scratch.stride,
           memory(to.rank) + exchange_.finished(to.entry) + columns.begin * 2,
           static_cast<std::size_t>(columns.size()));
  }
  if (!exchange_.last_column(signal_add(word(me_, exchange_.stored(task.block)), 1))) return;
  for (std::int32_t row = 0; row < block.rows; ++row) {
    const ExpertRowOrigin& to = origin(block.first_row + row);
    signal_set(word(to.rank, exchange_.finished_word(to.entry)), stamp());
  }
}

}  // namespace mkernel::kernels
