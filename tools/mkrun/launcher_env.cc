#include "tools/mkrun/launcher_env.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

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

Status read_number(const Environment& environment, const char* name, std::uint32_t& value) {
  const std::string_view text = environment(name);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && !text.empty()) return {};
  return {StatusCode::kInvalidArgument, std::string(name) + "='" + std::string(text) + "' is not a number"};
}

std::string job_of(const Environment& environment, const Names& names) {
  const char* job = environment(names.job);
  // torchrun's default id is "none": every such job on a cluster would share it.
  if (job == nullptr || *job == '\0' || std::string_view(job) == "none") return "";
  const char* step = names.step != nullptr ? environment(names.step) : nullptr;
  return std::string(job) + (step != nullptr ? std::string(".") + step : "");
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

Result<Launcher> detect_launcher(const Environment& environment) {
  for (const Names& names : kLaunchers) {
    if (environment(names.rank) == nullptr || environment(names.world_size) == nullptr) continue;
    Launcher launcher;
    launcher.name = names.launcher;
    MK_RETURN_IF_ERROR(read_number(environment, names.rank, launcher.rank));
    MK_RETURN_IF_ERROR(read_number(environment, names.world_size, launcher.world_size));
    if (environment(names.local_rank) != nullptr) {
      MK_RETURN_IF_ERROR(read_number(environment, names.local_rank, launcher.local_rank.emplace()));
    }
    launcher.job = job_of(environment, names);
    return launcher;
  }
  return Launcher{};
}

Result<Launcher> detect_launcher() {
  return detect_launcher(process_environment());
}

}  // namespace mkernel::mkrun
