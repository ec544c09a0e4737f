#include <doctest/doctest.h>

#include <map>

#include "tools/mkrun/launcher_env.h"

namespace mkernel::mkrun {
namespace {

Result<Launcher> detect(const std::map<std::string, std::string>& variables) {
  return detect_launcher([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Launcher found(const std::map<std::string, std::string>& variables) {
  const auto launcher = detect(variables);
  REQUIRE_MESSAGE(launcher.ok(), launcher.status().to_string());
  return launcher.value();
}

TEST_CASE("a plain shell is no launcher, and half of one is none either") {
  CHECK(found({}).name.empty());
  CHECK(found({{"RANK", "1"}}).name.empty());
  CHECK(found({{"SLURM_NTASKS", "4"}}).name.empty());
}

TEST_CASE("each launcher's names") {
  const Launcher torchrun =
      found({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"TORCHELASTIC_RUN_ID", "j1"}});
  CHECK(torchrun.name == "torchrun");
  CHECK(torchrun.rank == 3);
  CHECK(torchrun.world_size == 8);
  CHECK(torchrun.local_rank == 1);
  CHECK(torchrun.job == "j1");
  CHECK(found({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"TORCHELASTIC_RUN_ID", "none"}}).job.empty());

  const Launcher openmpi = found({{"OMPI_COMM_WORLD_RANK", "2"},
                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                  {"PMIX_NAMESPACE", "123"}});
  CHECK(openmpi.name == "Open MPI");
  CHECK(openmpi.local_rank == 2);
  CHECK(openmpi.job == "123");

  const Launcher mpich = found({{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}});
  CHECK(mpich.rank == 5);
  CHECK_FALSE(mpich.local_rank.has_value());

  const Launcher srun = found({{"SLURM_PROCID", "7"},
                               {"SLURM_NTASKS", "9"},
                               {"SLURM_LOCALID", "3"},
                               {"SLURM_JOB_ID", "77"},
                               {"SLURM_STEP_ID", "2"}});
  CHECK(srun.name == "srun");
  CHECK(srun.world_size == 9);
  CHECK(srun.job == "77.2");
}

TEST_CASE("inside an allocation the inner launcher wins over srun's variables") {
  CHECK(found({{"SLURM_PROCID", "0"},
               {"SLURM_NTASKS", "1"},
               {"OMPI_COMM_WORLD_RANK", "2"},
               {"OMPI_COMM_WORLD_SIZE", "4"}})
            .rank == 2);
}

TEST_CASE("a value that is no number is refused by name and value") {
  for (const char* value : {"", "x", "-1", "1 ", "99999999999"}) {
    const auto launcher = detect({{"RANK", value}, {"WORLD_SIZE", "2"}});
    REQUIRE_FALSE(launcher.ok());
    CHECK(launcher.status().text() == "RANK='" + std::string(value) + "' is not a number");
  }
}

}  // namespace
}  // namespace mkernel::mkrun
