#include "tools/mkrun/outputs.h"

#include <algorithm>
#include <functional>

#include "kernels/cpu/memory/convert.h"
#include "tools/mkrun/npy.h"

namespace mkernel::mkrun {
namespace {

using Paths = std::vector<std::pair<std::string, std::string>>;  ///< flag and file, where there is one

Paths without_absent(Paths all) {
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& one) { return one.second.empty(); }),
            all.end());
  return all;
}

Paths outputs_of(const Options& o) {
  return without_absent(
      {{"--out", o.out}, {"--lse", is_backward(o.op) ? "" : o.lse}, {"--d-k", o.d_k}, {"--d-v", o.d_v}});
}

Paths inputs_of(const Options& o) {
  return without_absent({{"--a", o.a},
                         {"--b", o.b},
                         {"--q", o.q},
                         {"--k", o.k},
                         {"--v", o.v},
                         {"--o", o.o},
                         {"--d-o", o.d_o},
                         {"--lse", is_backward(o.op) ? o.lse : ""},
                         {"--cu-seqlens", o.cu_seqlens},
                         {"--cu-seqlens-k", o.cu_seqlens_k},
                         {"--w1", o.w1},
                         {"--w2", o.w2},
                         {"--shared-w1", o.shared_w1},
                         {"--shared-w2", o.shared_w2},
                         {"--topk-indices", o.topk_indices},
                         {"--topk-weights", o.topk_weights},
                         {"--secret-file", o.secret_file}});
}

}  // namespace

Result<Outputs> Outputs::open(const Options& options) {
  Outputs outputs;
  for (const auto& [flag, path] : outputs_of(options)) {
    auto file = tools::OutputFile::open(path);
    if (!file.ok()) return file.status().with_context(flag);
    for (const auto& [other, opened] : outputs.files_) {
      if (!file->beside(opened.token())) continue;
      return Status(StatusCode::kInvalidArgument, other + " and " + flag + " are one file: " + path);
    }
    outputs.files_.emplace_back(flag, std::move(*file));
  }
  MK_RETURN_IF_ERROR(outputs.check_inputs(options));
  return outputs;
}

Status Outputs::check_inputs(const Options& options) const {
  for (const auto& [in, path] : inputs_of(options)) {
    for (const auto& [out, file] : files_) {
      if (file.token() == 0 || !file.replaces(path)) continue;
      return {StatusCode::kInvalidArgument,
              out + " " + file.path() + " would overwrite " + in + " " + path + ", which this rank reads"};
    }
  }
  return {};
}

Status Outputs::write(const std::string& flag, std::span<const std::int64_t> shape,
                      std::span<const float> values) {
  const auto found =
      std::find_if(files_.begin(), files_.end(), [&](const auto& one) { return one.first == flag; });
  return write_npy(found->second, shape, values).with_context(flag);
}

Status Outputs::write(const std::string& flag, std::span<const std::int64_t> shape,
                      const std::vector<std::uint16_t>& values, DataType dtype) {
  std::vector<float> floats(values.size());
  kernels::widen(dtype, values.data(), floats.data(), floats.size());
  return write(flag, shape, floats);
}

Status Outputs::publish() {
  for (auto& [flag, file] : files_) MK_RETURN_IF_ERROR(file.publish().with_context(flag));
  return {};
}

Outputs::Claims Outputs::claims() const {
  Claims claims{};
  for (std::size_t i = 0; i < files_.size(); ++i)
    claims[i] = {std::hash<std::string>{}(files_[i].second.target()), files_[i].second.token()};
  return claims;
}

std::string Outputs::shared_with(const Claims& other) const {
  const Claims mine = claims();
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const Claim& claim : other) {
      if (claim.path_hash == mine[i].path_hash && files_[i].second.beside(claim.token))
        return files_[i].first;
    }
  }
  return "";
}

}  // namespace mkernel::mkrun
