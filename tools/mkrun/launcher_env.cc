#include "tools/mkrun/launcher_env.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "client/src/digest.h"
#include "proto/abi/version.h"

namespace mkernel::mkrun {
namespace {

struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* job;
  const char* step;  ///< tells runs of one job apart; may be null
};

constexpr Names kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", nullptr},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "PMIX_NAMESPACE", nullptr},
    {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_JOBID", nullptr},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID"},
};

/// The value of a variable; null also when it is empty.
const char* value_of(const Environment& environment, const char* name) {
  const char* const value = environment(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

/// `given`, or else the number that the variable holds.
Status read_number(const Environment& environment, const char* name,
                   const std::optional<std::uint32_t>& given, std::uint32_t& value) {
  if (given) return value = *given, Status();
  const std::string_view text = value_of(environment, name);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && !text.empty()) return {};
  return {StatusCode::kInvalidArgument, std::string(name) + "='" + std::string(text) + "' is not a number"};
}

std::string job_of(const Environment& environment, const Names& names) {
  const char* job = value_of(environment, names.job);
  // torchrun's default id is "none": every such job on a cluster would share it.
  if (job == nullptr || std::string_view(job) == "none") return "";
  const char* step = names.step != nullptr ? value_of(environment, names.step) : nullptr;
  return std::string(job) + (step != nullptr ? std::string(".") + step : "");
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

Result<Launcher> detect_launcher(const Environment& environment, const GivenRank& given) {
  const auto is_set = [&](const char* name) { return value_of(environment, name) != nullptr; };
  for (const Names& names : kLaunchers) {
    if (!is_set(names.rank) || !is_set(names.world_size)) continue;
    Launcher launcher;
    launcher.name = names.launcher;
    MK_RETURN_IF_ERROR(read_number(environment, names.rank, given.rank, launcher.rank));
    MK_RETURN_IF_ERROR(read_number(environment, names.world_size, given.world_size, launcher.world_size));
    if (is_set(names.local_rank)) {
      MK_RETURN_IF_ERROR(read_number(environment, names.local_rank, {}, launcher.local_rank.emplace()));
    }
    launcher.job = job_of(environment, names);
    return launcher;
  }
  return Launcher{};
}

std::string group_name_of(const std::string& op, const std::string& job) {
  constexpr std::size_t kKept = 40;  // with a hyphen and the hash it stays below the limit
  std::string name = op + "-" + job;
  const auto printable = [](char c) { return c > 0x20 && c < 0x7f; };
  if (name.size() < abi::kNameBytes && std::all_of(name.begin(), name.end(), printable)) return name;
  const std::uint64_t digest =
      client::digest_of(name);  // the same on every machine, as std::hash need not be
  name.resize(std::min(name.size(), kKept));
  std::replace_if(name.begin(), name.end(), std::not_fn(printable), '_');
  char digits[20];
  std::snprintf(digits, sizeof(digits), "-%016llx", static_cast<unsigned long long>(digest));
  return name + digits;
}

}  // namespace mkernel::mkrun
