#include <doctest/doctest.h>

#include <map>

#include "tools/mkrun/launcher_env.h"

namespace mkernel::mkrun {
namespace {

Result<Launcher> detect(const std::map<std::string, std::string>& variables, const GivenRank& given = {}) {
  const auto environment = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return detect_launcher(environment, given);
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
  for (const char* value : {"x", "-1", "1 ", "99999999999"}) {
    const auto launcher = detect({{"RANK", value}, {"WORLD_SIZE", "2"}});
    REQUIRE_FALSE(launcher.ok());
    CHECK(launcher.status().text() == "RANK='" + std::string(value) + "' is not a number");
  }
}

TEST_CASE("an empty variable is one that is not set") {
  CHECK(found({{"RANK", ""}, {"WORLD_SIZE", "2"}}).name.empty());
  CHECK(found({{"RANK", ""}, {"WORLD_SIZE", ""}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}).name ==
        "srun");
  const Launcher launcher =
      found({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", ""}, {"TORCHELASTIC_RUN_ID", ""}});
  CHECK_FALSE(launcher.local_rank.has_value());
  CHECK(launcher.job.empty());
}

TEST_CASE("what the command line says is not read from the environment") {
  const auto launcher = detect({{"RANK", "x"}, {"WORLD_SIZE", "4"}}, {.rank = 3});
  REQUIRE_MESSAGE(launcher.ok(), launcher.status().to_string());
  CHECK(launcher.value().rank == 3);
  CHECK(launcher.value().world_size == 4);
  CHECK_FALSE(detect({{"RANK", "x"}, {"WORLD_SIZE", "4"}}, {.world_size = 3}).ok());
}

TEST_CASE("a name made of operation and job fits, and tells jobs apart") {
  CHECK(group_name_of("ag_gemm", "77.2") == "ag_gemm-77.2");
  const std::string long_job(300, 'x'), odd_job = "tra\xc3\xadn 7";
  for (const std::string& job : {long_job, odd_job}) {
    const std::string name = group_name_of("ag_gemm", job);
    CHECK(name.size() < 64);
    CHECK(name.rfind("ag_gemm-", 0) == 0);
    for (const char c : name) CHECK((c > 0x20 && c < 0x7f));
    CHECK(name == group_name_of("ag_gemm", job));
    CHECK(name != group_name_of("ag_gemm", job + "y"));
  }
}

}  // namespace
}  // namespace mkernel::mkrun
