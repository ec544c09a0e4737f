// mkrun as its users run it: processes, files, exit codes. The daemon is the fake one, the operations are
// real.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "mkernel/ops.h"
#include "tests/support/fake_daemon.h"
#include "tools/mkrun/npy.h"

namespace mkernel::test {
namespace {

using mkrun::read_npy;

constexpr std::int64_t kWorld = 4;

struct Ended {
  int code = -1;
  std::string text;  ///< stdout and stderr
};

class MkrunTest {
 public:
  MkrunTest() {
    char name[] = "/tmp/mkernel-mkrun-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder_ = name;
  }
  ~MkrunTest() { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::vector<float> store(const std::string& name, std::vector<std::int64_t> shape, unsigned seed) {
    std::int64_t count = 1;
    for (const auto extent : shape) count *= extent;
    std::vector<float> values(static_cast<std::size_t>(count));
    std::mt19937 random(seed);
    // Eighths up to 1: exact in both data types, so only the result is rounded.
    for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 17) - 8) / 8;
    auto file = tools::OutputFile::open(path(name));
    REQUIRE(file.ok());
    CHECK(mkrun::write_npy(*file, shape, values).ok());
    CHECK(file->publish().ok());
    return values;
  }

  /// Starts mkrun with these arguments and environment alone.
  pid_t start(std::vector<std::string> arguments, std::vector<std::string> environment,
              const std::string& log) const {
    arguments.insert(arguments.begin(), MKRUN);
    std::vector<char*> argv, envp;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    for (std::string& variable : environment) envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, path(log).c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t pid = -1;
    CHECK(::posix_spawn(&pid, MKRUN, &actions, nullptr, argv.data(), envp.data()) == 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }

  Ended finish(pid_t pid, const std::string& log) const {
    int status = 0;
    CHECK(::waitpid(pid, &status, 0) == pid);
    std::stringstream text;
    text << std::ifstream(path(log)).rdbuf();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text.str()};
  }

  Ended run(const std::vector<std::string>& arguments) const {
    return finish(start(arguments, {}, "log"), "log");
  }

  /// One process per rank, named as srun does.
  std::vector<Ended> run_ranks(const std::vector<std::string>& arguments) const {
    std::vector<pid_t> ranks;
    for (std::int64_t rank = 0; rank < kWorld; ++rank) {
      ranks.push_back(start(arguments,
                            {"SLURM_PROCID=" + std::to_string(rank), "SLURM_NTASKS=" + std::to_string(kWorld),
                             "SLURM_JOB_ID=5"},
                            "log" + std::to_string(rank)));
    }
    std::vector<Ended> ended;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      ended.push_back(finish(ranks[rank], "log" + std::to_string(rank)));
    }
    return ended;
  }

 private:
  std::string folder_;
};

TEST_CASE_FIXTURE(MkrunTest, "gemm_rs and ag_gemm on files, two nodes of two ranks") {
  FakeDaemon daemon({.nodes = {"a", "a", "b", "b"}, .log2_slots = 8});
  const std::int64_t m = 37, n = 21, k = 19;
  std::vector<std::vector<float>> a, b;
  for (std::int64_t rank = 0; rank < kWorld; ++rank) {
    a.push_back(store("a" + std::to_string(rank) + ".npy", {m, k}, static_cast<unsigned>(rank)));
    b.push_back(store("b" + std::to_string(rank) + ".npy", {k, n}, static_cast<unsigned>(rank + 50)));
  }
  const auto ended = run_ranks({"gemm_rs", "--daemon", daemon.socket(), "--a", path("a{rank}.npy"), "--b",
                                path("b{rank}.npy"), "--out", path("c{rank}.npy"), "--dtype", "f16",
                                "--iterations", "3", "--threads", "1"});
  for (std::int64_t rank = 0; rank < kWorld; ++rank) {
    REQUIRE_MESSAGE(ended[static_cast<std::size_t>(rank)].code == 0,
                    ended[static_cast<std::size_t>(rank)].text);
    const auto c = read_npy(path("c" + std::to_string(rank) + ".npy"));
    REQUIRE_MESSAGE(c.ok(), c.status().to_string());
    const Range rows = block_range(m, kWorld, rank);
    REQUIRE(c->shape == std::vector<std::int64_t>{rows.size(), n});
    for (std::int64_t i = 0; i < rows.size() * n; ++i) {
      double wanted = 0;
      for (std::size_t r = 0; r < kWorld; ++r) {
        for (std::int64_t x = 0; x < k; ++x) {
          wanted += static_cast<double>(a[r][static_cast<std::size_t>((rows.begin + i / n) * k + x)]) *
                    b[r][static_cast<std::size_t>(x * n + i % n)];
        }
      }
      float seen = NAN;
      std::memcpy(&seen, c->data.data() + i * 4, 4);
      CHECK(seen == doctest::Approx(wanted).epsilon(2e-3));
    }
  }
  // Every rank brings all m rows where ag_gemm wants its share only: said alike by all ranks.
  for (const Ended& rank :
       run_ranks({"ag_gemm", "--daemon", daemon.socket(), "--a", path("a{rank}.npy"), "--b",
                  path("b{rank}.npy"), "--out", path("c{rank}.npy"), "--m", "37"})) {
    CHECK(rank.code == 1);
    CHECK_MESSAGE(rank.text.find("rank 0 brings 37 of m = 37 (--m), its share is 9") != std::string::npos,
                  rank.text);
  }
}

TEST_CASE_FIXTURE(MkrunTest, "a result that cannot be whole leaves the earlier file, and no other") {
  FakeDaemon daemon({.nodes = {"a", "a", "b", "b"}, .log2_slots = 8});
  store("a.npy", {4, 5}, 1);
  store("b.npy", {5, 6}, 2);
  std::filesystem::copy(path("b.npy"), path("c.npy"));
  const auto launch = [&](const std::string& out) {
    return run_ranks(
        {"gemm_ar", "--daemon", daemon.socket(), "--a", path("a.npy"), "--b", path("b.npy"), "--out", out});
  };
  for (const Ended& rank : launch(path("c.npy"))) {
    CHECK(rank.code == 1);
    CHECK_MESSAGE(rank.text.find("ranks 0 and 1 write one file") != std::string::npos, rank.text);
  }
  const auto kept = read_npy(path("c.npy"));
  REQUIRE(kept.ok());
  CHECK(kept->shape == std::vector<std::int64_t>{5, 6});
  // A device is no file that ranks could spoil for each other; this one is always full.
  for (const Ended& rank : launch("/dev/full")) {
    CHECK(rank.code == 1);
    CHECK_MESSAGE(rank.text.find("--out: /dev/full cannot be written: No space left") != std::string::npos,
                  rank.text);
  }
  for (const Ended& rank : launch(path("{rank}.npy"))) CHECK_MESSAGE(rank.code == 0, rank.text);
  for (const auto& entry : std::filesystem::directory_iterator(path("")))
    CHECK_MESSAGE(entry.path().extension() != ".part", entry.path().string());
}

TEST_CASE_FIXTURE(MkrunTest, "mistakes end with the right code and say what is wrong") {
  store("a.npy", {4, 5}, 1);
  store("b.npy", {6, 7}, 2);
  const std::vector<std::string> one = {"--world-size", "1", "--rank", "0",
                                        "--group",      "g", "--out",  path("c.npy")};
  const auto check = [&](std::vector<std::string> arguments, bool with_rank, int code,
                         const std::string& part) {
    if (with_rank) arguments.insert(arguments.end(), one.begin(), one.end());
    const Ended ended = run(arguments);
    CHECK_MESSAGE(ended.code == code, ended.text);
    CHECK_MESSAGE(ended.text.find(part) != std::string::npos, ended.text);
  };
  check({"--help"}, false, 0, "Exit codes");
  check({}, false, 2, "op");
  check({"juggle"}, true, 2, "juggle");
  check({"ag_gemm", "--dtype", "f64"}, true, 2, "f64");
  check({"ag_gemm", "--out", "c"}, false, 2, "--rank is missing, and no launcher");
  check({"ag_gemm"}, true, 2, "--a is missing");
  check({"ag_gemm", "--a", path("none.npy")}, true, 2, "none.npy: No such file");
  check({"ag_gemm", "--a", path("a.npy"), "--b", path("b.npy")}, true, 2,
        "has shape (6, 7), wanted is (k = 5, n)");
  check({"ag_gemm", "--a", path("a.npy"), "--b", path("b.npy"), "--b-layout", "column"}, true, 2,
        "wanted is (n, k = 5)");
  check({"gemm_ar", "--a", path("a.npy"), "--b", path("a.npy"), "--b-layout", "column", "--daemon",
         "/nonexistent"},
        true, 3, "is mkerneld running");
  check({"gemm_ar", "--a", path("a.npy"), "--b", path("a.npy"), "--b-layout", "column", "--world-size", "1",
         "--rank", "0", "--group", "g", "--out", path("none/c.npy")},
        false, 2, "--out: " + path("none/c.npy") + ": No such file");
  check({"gemm_ar", "--a", path("a.npy"), "--b", path("a.npy"), "--b-layout", "column", "--world-size", "1",
         "--rank", "0", "--group", "g", "--out", path("a.npy")},
        false, 2, "would overwrite --a " + path("a.npy"));
}

}  // namespace
}  // namespace mkernel::test
