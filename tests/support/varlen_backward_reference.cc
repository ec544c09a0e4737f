#include "tests/support/varlen_backward_reference.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/support/random_tensor.h"

namespace mkernel::test {
namespace {

/// The widths of rows, and where a sequence lies.
struct Cut {
  AttentionShape shape;  ///< of the sequence alone
  Range queries, keys;
  std::int64_t q_width, kv_width;
};

/// Calls with(Cut) for every sequence that has queries or keys.
template <class With>
void for_every_sequence(const AttentionShape& shape, const SequenceLengths& lengths, const With& with) {
  for (std::size_t i = 0; i + 1 < lengths.q.size(); ++i) {
    Cut cut{shape,
            {lengths.q[i], lengths.q[i + 1]},
            {lengths.k[i], lengths.k[i + 1]},
            shape.heads * shape.head_dim,
            shape.kv_heads * shape.head_dim};
    cut.shape.max_sequences = 0;
    cut.shape.sequence = cut.queries.size();
    cut.shape.keys = cut.keys.size();
    if (cut.queries.size() + cut.keys.size() > 0) with(cut);
  }
}

std::vector<std::uint16_t> rows_of(const std::vector<std::uint16_t>& tensor, Range rows, std::int64_t width) {
  return {tensor.begin() + rows.begin * width, tensor.begin() + rows.end * width};
}

AttentionBackwardTensors tensors_of(const AttentionShape& whole, const Cut& cut,
                                    const AttentionBackwardTensors& tensors) {
  AttentionBackwardTensors of{.forward = {rows_of(tensors.forward.q, cut.queries, cut.q_width),
                                          rows_of(tensors.forward.k, cut.keys, cut.kv_width),
                                          rows_of(tensors.forward.v, cut.keys, cut.kv_width)},
                              .out = rows_of(tensors.out, cut.queries, cut.q_width),
                              .d_out = rows_of(tensors.d_out, cut.queries, cut.q_width),
                              .lse = {}};
  for (std::int64_t head = 0; head < whole.heads; ++head) {
    const auto of_head = tensors.lse.begin() + head * whole.sequence;
    of.lse.insert(of.lse.end(), of_head + cut.queries.begin, of_head + cut.queries.end);
  }
  return of;
}

std::size_t not_all(const std::vector<std::uint16_t>& tensor, std::uint16_t bits) {
  return static_cast<std::size_t>(
      std::count_if(tensor.begin(), tensor.end(), [bits](std::uint16_t found) { return found != bits; }));
}

}  // namespace

AttentionBackwardTensors random_varlen_backward(const AttentionShape& shape, const SequenceLengths& lengths,
                                                std::uint64_t seed, float scale) {
  AttentionBackwardTensors made = random_attention_gradients(shape, seed, scale);
  for_every_sequence(shape, lengths, [&](const Cut& cut) {
    AttentionBackwardTensors of = tensors_of(shape, cut, made);
    if (cut.keys.size() == 0) {
      std::fill(of.out.begin(), of.out.end(), std::uint16_t{0});
      std::fill(of.lse.begin(), of.lse.end(), -std::numeric_limits<float>::infinity());
    } else {
      attend_for_backward(cut.shape, of);
    }
    std::copy(of.out.begin(), of.out.end(), made.out.begin() + cut.queries.begin * cut.q_width);
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t rows = cut.queries.size();
      std::copy_n(of.lse.begin() + head * rows, rows,
                  made.lse.begin() + head * shape.sequence + cut.queries.begin);
    }
  });
  return made;
}

std::size_t wrong_varlen_gradients(const AttentionShape& shape, const SequenceLengths& lengths,
                                   const AttentionBackwardTensors& tensors,
                                   const AttentionGradients& gradients, Weights weights) {
  std::size_t wrong = 0;
  for_every_sequence(shape, lengths, [&](const Cut& cut) {
    const AttentionGradients of{rows_of(gradients.d_q, cut.queries, cut.q_width),
                                rows_of(gradients.d_k, cut.keys, cut.kv_width),
                                rows_of(gradients.d_v, cut.keys, cut.kv_width)};
    if (cut.queries.size() > 0 && cut.keys.size() > 0) {
      wrong += wrong_gradients(cut.shape, tensors_of(shape, cut, tensors), of, weights);
      return;
    }
    wrong += not_all(of.d_q, 0) + not_all(of.d_k, 0) + not_all(of.d_v, 0);
  });
  const Range queries{lengths.q.back(), shape.sequence}, keys{lengths.k.back(), shape.keys};
  const std::int64_t q_width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
  return wrong + not_all(rows_of(gradients.d_q, queries, q_width), kPoison) +
         not_all(rows_of(gradients.d_k, keys, kv_width), kPoison) +
         not_all(rows_of(gradients.d_v, keys, kv_width), kPoison);
}

}  // namespace mkernel::test
