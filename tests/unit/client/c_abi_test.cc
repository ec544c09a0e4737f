// The C ABI, called from C (c_abi_calls.c) against the fake daemon.
#include "tests/unit/client/ranks.h"

extern "C" const char* mk_test_versions(void);
extern "C" const char* mk_test_null(void);
extern "C" const char* mk_test_errors(const char* socket);
extern "C" const char* mk_test_rank(const char* socket, unsigned rank, unsigned world);
extern "C" const char* mk_test_gemm(const char* socket);

namespace mkernel::test {
namespace {

TEST_CASE("C: versions and names") {
  CHECK(std::string(mk_test_versions()) == "");
}

TEST_CASE("C: a NULL handle is refused by the name of the function, everywhere") {
  CHECK(std::string(mk_test_null()) == "");
}

TEST_CASE("C: errors carry a code and a text for the calling thread") {
  FakeDaemon daemon;
  CHECK(std::string(mk_test_errors(daemon.socket().c_str())) == "");
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

TEST_CASE("C: two ranks exchange, put and wait") {
  FakeDaemon daemon;
  on_all_ranks(2, [&](std::uint32_t rank) {
    CHECK(std::string(mk_test_rank(daemon.socket().c_str(), rank, 2)) == "");
  });
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
  CHECK(daemon.look().puts == 0 + 2 * 2);
}

TEST_CASE("C: a GEMM operation runs where its executor can, and says where it cannot") {
  FakeDaemon daemon;
  CHECK(std::string(mk_test_gemm(daemon.socket().c_str())) == "");
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

}  // namespace
}  // namespace mkernel::test
