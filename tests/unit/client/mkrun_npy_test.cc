#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "kernels/cpu/memory/convert.h"
#include "tools/mkrun/npy.h"
#include "tools/mkrun/operand.h"

namespace mkernel::mkrun {
namespace {

/// A folder that goes away with the test.
class Folder {
 public:
  Folder() { REQUIRE(::mkdtemp(name_) != nullptr); }
  ~Folder() {
    ::unlink(file().c_str());
    ::rmdir(name_);
  }
  std::string file() const { return std::string(name_) + "/x.npy"; }

 private:
  char name_[32] = "/tmp/mkernel-npy-XXXXXX";
};

std::string npy(const std::string& header, const std::string& data, int version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  const std::size_t length = header.size();
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) bytes += static_cast<char>((length >> (8 * i)) & 0xff);
  return bytes + header + data;
}

Result<Array> read(const Folder& folder, const std::string& bytes) {
  std::ofstream(folder.file(), std::ios::binary) << bytes;
  return read_npy(folder.file());
}

Status store(const Folder& folder, const std::vector<std::int64_t>& shape, const std::vector<float>& values) {
  auto file = tools::OutputFile::open(folder.file());
  REQUIRE(file.ok());
  MK_RETURN_IF_ERROR(write_npy(*file, shape, values));
  return file->publish();
}

TEST_CASE("what is written is read back, and begins at a multiple of 64") {
  const Folder folder;
  std::mt19937 random(4);
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{3, 5}, {7}, {}, {0, 4}, {2, 3, 4, 5}}) {
    std::int64_t count = 1;
    for (const auto extent : shape) count *= extent;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(random()) / 1e9F - 2;
    REQUIRE(store(folder, shape, values).ok());
    const auto array = read_npy(folder.file());
    REQUIRE_MESSAGE(array.ok(), array.status().to_string());
    CHECK(array->shape == shape);
    CHECK(array->type == ElementType::kF32);
    REQUIRE(array->data.size() == values.size() * 4);
    if (!values.empty()) CHECK(std::memcmp(array->data.data(), values.data(), array->data.size()) == 0);
    std::ifstream file(folder.file(), std::ios::binary | std::ios::ate);
    CHECK((static_cast<std::size_t>(file.tellg()) - array->data.size()) % 64 == 0);
  }
}

TEST_CASE("both format versions, all element types, any order of keys") {
  const Folder folder;
  const std::string six(24, 'x');
  for (int version : {1, 2}) {
    const auto array =
        read(folder, npy("{'shape': (2, 3), \"descr\": '<f4', 'fortran_order': False}\n", six, version));
    REQUIRE_MESSAGE(array.ok(), array.status().to_string());
    CHECK(array->shape == std::vector<std::int64_t>{2, 3});
    CHECK(array->elements() == 6);
  }
  const auto type_of = [&](const std::string& descr, std::size_t bytes) {
    const auto array = read(folder, npy("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (3,), }",
                                        std::string(3 * bytes, 'x')));
    REQUIRE_MESSAGE(array.ok(), array.status().to_string());
    return array->type;
  };
  CHECK(type_of("<f2", 2) == ElementType::kF16);
  CHECK(type_of("<i4", 4) == ElementType::kI32);
  CHECK(type_of("<i8", 8) == ElementType::kI64);
}

TEST_CASE("every malformed file is refused by name of file and field") {
  const Folder folder;
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  const std::string data(8, 'x');
  const std::string shape = "{'descr': '<f4', 'fortran_order': False, 'shape': ";
  const std::pair<std::string, std::string> cases[] = {
      {"", "within its magic"},
      {"\x93NUMPZ\x01", "within its magic"},
      {std::string("PK\x03\x04zipfilezipfile"), "magic"},
      {npy(good, data, 3), "version is 3.0"},
      {npy(good, data).substr(0, 30), "within its header"},
      {npy(good, data, 2).substr(0, 11), "header length"},
      {npy(good, "1234567"), "data has 7 bytes, shape (2,) needs 8"},
      {npy(good, "123456789"), "data has 9 bytes"},
      {npy("[1, 2]", data), "header does not begin"},
      {npy("{'descr'}", data), "no 'key': value"},
      {npy("{'descr': '<f4' 'shape': ()}", data), "no ',' or '}'"},
      {npy(good + " x", data), "goes on after '}'"},
      {npy("{'descr': '<f4', 'shape': (2,)}", data), "fortran_order is missing"},
      {npy("{'fortran_order': False, 'shape': (2,)}", data), "descr is missing"},
      {npy("{'descr': '<f4', 'fortran_order': False}", data), "shape is missing"},
      {npy("{'descr': '<f4', 'descr': '<f4'}", data), "descr is there twice"},
      {npy("{'color': 'red'}", data), "unknown key 'color'"},
      {npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", data), "descr is '>f4'"},
      {npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", data), "descr is '<f8'"},
      {npy("{'descr': [('x', '<f4')], 'shape': (2,)}", data), "descr is no string"},
      {npy("{'descr': '<f4", data), "descr is no string"},
      {npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}", data), "ascontiguousarray"},
      {npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", data), "fortran_order is neither"},
      {npy(shape + "2}", data), "shape is no tuple"},
      {npy(shape + "(-2,)}", data), "no extent"},
      {npy(shape + "(2 2)}", data), "no ',' or ')'"},
      {npy(shape + "(2,", data), "no extent"},
      {npy(shape + "(99999999999999999999,)}", data), "no extent"},
      {npy(shape + "(4611686018427387904, 4)}", data), "too large"},
      {npy(shape + "(1000000000, 1000)}", data), "needs 4000000000000"},
  };
  for (const auto& item : cases) {
    const std::string &bytes = item.first, &expected = item.second;
    const auto array = read(folder, bytes);
    REQUIRE_FALSE(array.ok());
    CHECK_MESSAGE(array.status().text().find(folder.file()) == 0, array.status().to_string());
    CHECK_MESSAGE(array.status().text().find(expected) != std::string::npos,
                  (expected + " / " + array.status().to_string()));
  }
  CHECK(read_npy("/nonexistent.npy").status().code() == StatusCode::kNotFound);
}

TEST_CASE("random damage never crashes the reader") {
  const Folder folder;
  std::mt19937 random(11);
  const std::string good =
      npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", std::string(24, 'x'));
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    for (unsigned hits = 1 + random() % 4; hits > 0; --hits)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto array = read(folder, bytes);
    if (array.ok()) CHECK(array->data.size() <= bytes.size());
  }
}

TEST_CASE("operands name flag, file, the shape found and the shape wanted") {
  const Folder folder;
  REQUIRE(store(folder, {2, 3}, {1, -2, 0.5F, 3, 1e-3F, 7}).ok());
  const auto fails = [](const Status& status, const std::string& part) {
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_MESSAGE(status.text().find(part) != std::string::npos, status.to_string());
  };
  fails(load_values("--b", "", {{"k", 5}, {"n"}}, DataType::kBf16).status(),
        "--b is missing: a .npy file of shape (k = 5, n)");
  fails(load_values("--b", folder.file(), {{"k", 5}, {"n"}}, DataType::kBf16).status(),
        "--b " + folder.file() + " has shape (2, 3), wanted is (k = 5, n)");
  fails(load_values("--b", folder.file(), {{"k"}}, DataType::kBf16).status(), "wanted is (k)");
  fails(load_indices("--topk-indices", folder.file(), {{"t"}, {"k"}}).status(), "holds floats");
  for (const DataType dtype : {DataType::kBf16, DataType::kF16}) {
    const auto operand = load_values("--a", folder.file(), {{"m"}, {"k", 3}}, dtype);
    REQUIRE(operand.ok());
    CHECK(operand->shape == std::vector<std::int64_t>{2, 3});
    std::vector<float> back(6);
    kernels::widen(dtype, operand->values.data(), back.data(), 6);
    CHECK(back[1] == -2);
    CHECK(back[2] == 0.5F);
    CHECK(back[4] == doctest::Approx(1e-3).epsilon(kernels::rounding_unit(dtype)));
  }
}

TEST_CASE("indices of either width; one that is no index is refused by value and place") {
  const Folder folder;
  const auto store = [&](const char* descr, auto values) {
    const std::string data(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    std::ofstream(folder.file(), std::ios::binary)
        << npy(std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (1, 3)}", data);
    return load_indices("--topk-indices", folder.file(), {{"tokens"}, {"topk"}});
  };
  CHECK(store("<i4", std::vector<std::int32_t>{4, 0, 2}).value().indices ==
        std::vector<std::int32_t>{4, 0, 2});
  CHECK(store("<i8", std::vector<std::int64_t>{4, 0, 2}).value().indices ==
        std::vector<std::int32_t>{4, 0, 2});
  const auto bad = store("<i8", std::vector<std::int64_t>{4, 1LL << 40, 2});
  CHECK_MESSAGE(bad.status().text().find("index 1099511627776 at element 1") != std::string::npos,
                bad.status().text());
}

}  // namespace
}  // namespace mkernel::mkrun
