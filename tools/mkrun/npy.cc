#include "tools/mkrun/npy.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

namespace mkernel::mkrun {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kLongestHeader = 1 << 20;

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

/// What the header's dictionary says.
struct Header {
  std::optional<ElementType> type;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kF16: return 2;
    case ElementType::kI64: return 8;
    default: return 4;
  }
}

/// Reads the one form of Python dictionary that numpy writes: string keys; strings, booleans and tuples of
/// integers as values. Every problem is told with the field it was found in.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  Result<Header> parse() {
    Header header;
    if (!take('{')) return problem("header", "does not begin with '{'");
    while (!take('}')) {
      std::string key;
      if (!take_string(key) || !take(':'))
        return problem("header", "holds no 'key': value at byte " + position());
      MK_RETURN_IF_ERROR(parse_value(key, header));
      if (!take(',') && !peek('}')) return problem("header", "holds no ',' or '}' at byte " + position());
    }
    skip_space();
    if (at_ != text_.size()) return problem("header", "goes on after '}' at byte " + position());
    if (!header.type) return problem("descr", "is missing");
    if (!header.fortran_order) return problem("fortran_order", "is missing");
    if (!header.shape) return problem("shape", "is missing");
    return header;
  }

 private:
  static Status problem(const std::string& field, const std::string& what) {
    return {StatusCode::kInvalidArgument, field + " " + what};
  }

  Status parse_value(const std::string& key, Header& header) {
    if (key == "descr") {
      if (header.type) return problem(key, "is there twice");
      return parse_descr(header);
    }
    if (key == "fortran_order") {
      if (header.fortran_order) return problem(key, "is there twice");
      if (take_word("False")) return header.fortran_order = false, Status();
      if (take_word("True")) {
        return problem(key, "is True (columns first); save numpy.ascontiguousarray(x) instead");
      }
      return problem(key, "is neither True nor False");
    }
    if (key == "shape") {
      if (header.shape) return problem(key, "is there twice");
      return parse_shape(header);
    }
    return problem("header", "holds an unknown key '" + key + "'");
  }

  Status parse_descr(Header& header) {
    std::string descr;
    if (!take_string(descr)) return problem("descr", "is no string (a structured type?)");
    if (descr == "<f4") return header.type = ElementType::kF32, Status();
    if (descr == "<f2") return header.type = ElementType::kF16, Status();
    if (descr == "<i4") return header.type = ElementType::kI32, Status();
    if (descr == "<i8") return header.type = ElementType::kI64, Status();
    return problem("descr", "is '" + descr + "', supported are '<f4', '<f2' and for indices '<i4', '<i8'");
  }

  Status parse_shape(Header& header) {
    std::vector<std::int64_t> shape;
    if (!take('(')) return problem("shape", "is no tuple");
    while (!take(')')) {
      std::int64_t extent = 0;
      if (!take_number(extent))
        return problem("shape", "holds something that is no extent at byte " + position());
      shape.push_back(extent);
      if (!take(',') && !peek(')')) return problem("shape", "holds no ',' or ')' at byte " + position());
    }
    header.shape = std::move(shape);
    return {};
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool peek(char c) {
    skip_space();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool take(char c) {
    if (!peek(c)) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool take_string(std::string& value) {
    const char quote = peek('"') ? '"' : '\'';
    if (!take(quote)) return false;
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) return false;
    value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }
  bool take_number(std::int64_t& value) {
    skip_space();
    const std::size_t begin = at_;
    for (value = 0; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (value > (std::numeric_limits<std::int64_t>::max() - 9) / 10) return false;
      value = value * 10 + (text_[at_] - '0');
    }
    return at_ > begin;
  }
  std::string position() const { return std::to_string(at_); }

  const std::string_view text_;
  std::size_t at_ = 0;
};

Result<std::string> read_header_text(std::FILE* file) {
  unsigned char start[12] = {};
  if (std::fread(start, 1, 10, file) != 10)
    return Status(StatusCode::kInvalidArgument, "file ends within its magic");
  if (std::memcmp(start, kMagic.data(), kMagic.size()) != 0) {
    return Status(StatusCode::kInvalidArgument, "magic is not that of a .npy file");
  }
  const unsigned version = start[6];
  if ((version != 1 && version != 2) || start[7] != 0) {
    return Status(StatusCode::kInvalidArgument, "version is " + std::to_string(version) + "." +
                                                    std::to_string(start[7]) + ", supported are 1.0 and 2.0");
  }
  std::size_t length = start[8] | (std::size_t{start[9]} << 8);
  if (version == 2) {
    if (std::fread(start + 10, 1, 2, file) != 2) {
      return Status(StatusCode::kInvalidArgument, "file ends within its header length");
    }
    length |= (std::size_t{start[10]} << 16) | (std::size_t{start[11]} << 24);
  }
  if (length > kLongestHeader) {
    return Status(StatusCode::kInvalidArgument, "header length is " + std::to_string(length) +
                                                    ", the limit is " + std::to_string(kLongestHeader));
  }
  std::string text(length, '\0');
  if (std::fread(text.data(), 1, length, file) != length) {
    return Status(StatusCode::kInvalidArgument,
                  "file ends within its header of " + std::to_string(length) + " bytes");
  }
  return text;
}

/// Bytes of the array, or an error when the product is beyond any file.
Result<std::size_t> bytes_of(const Header& header) {
  std::size_t bytes = element_bytes(*header.type);
  for (const std::int64_t extent : *header.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes) || bytes > (1ULL << 48)) {
      return Status(StatusCode::kInvalidArgument, "shape " + shape_text(*header.shape) + " is too large");
    }
  }
  return bytes;
}

/// Bytes from here to the end, without reading them: a lie in the header must not make us allocate.
Result<std::size_t> bytes_left(std::FILE* file) {
  const long here = std::ftell(file);
  if (here < 0 || std::fseek(file, 0, SEEK_END) != 0) {
    return Status(StatusCode::kInvalidArgument, std::string("file cannot be sized: ") + std::strerror(errno));
  }
  const long end = std::ftell(file);
  std::fseek(file, here, SEEK_SET);
  return static_cast<std::size_t>(end - here);
}

Result<Array> read_array(std::FILE* file) {
  const auto text = read_header_text(file);
  if (!text.ok()) return text.status();
  auto header = HeaderParser(text.value()).parse();
  if (!header.ok()) return header.status();
  const auto bytes = bytes_of(*header);
  if (!bytes.ok()) return bytes.status();
  const auto left = bytes_left(file);
  if (!left.ok()) return left.status();
  if (left.value() != bytes.value()) {
    return Status(StatusCode::kInvalidArgument, "data has " + std::to_string(left.value()) +
                                                    " bytes, shape " + shape_text(*header->shape) +
                                                    " needs " + std::to_string(bytes.value()));
  }
  Array array;
  array.type = *header->type;
  array.shape = std::move(*header->shape);
  array.data.resize(bytes.value());
  if (std::fread(array.data.data(), 1, array.data.size(), file) != array.data.size()) {
    return Status(StatusCode::kDataLoss, std::string("data cannot be read: ") + std::strerror(errno));
  }
  return array;
}

}  // namespace

std::int64_t Array::elements() const {
  return static_cast<std::int64_t>(data.size() / element_bytes(type));
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

Result<Array> read_npy(const std::string& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return Status(StatusCode::kNotFound, path + ": " + std::strerror(errno));
  auto array = read_array(file.get());
  if (!array.ok()) return array.status().with_context(path);
  array->file = path;
  return array;
}

Status write_npy(tools::OutputFile& file, std::span<const std::int64_t> shape,
                 std::span<const float> values) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape_text(shape) + ", }";
  header.append((64 - (kMagic.size() + 4 + header.size() + 1) % 64) % 64, ' ')
      .append("\n");  // data begins at 64 * n
  std::string start(kMagic);
  start += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  start += header;
  MK_RETURN_IF_ERROR(file.write(start));
  return file.write(std::as_bytes(values));
}

}  // namespace mkernel::mkrun
