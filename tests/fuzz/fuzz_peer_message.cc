// A hostile daemon among the peers: a group directory with ranks of its own that wait, and the input as
// messages of two peers. Whatever they say, nobody's answer comes twice, no group holds a rank that was not
// confirmed, what is remembered is bounded, and who breaks the protocol is dropped with a named reason.
//
// A message is one byte that says whose it is and how the rest is read, two bytes of length, and the content:
// a serialised PeerMessage, or fields of one that is put together here.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "daemon/base/utf8.h"
#include "tests/unit/daemon/cluster/directory_cluster.h"

namespace {

using namespace mkernel;
using namespace mkernel::cluster;

constexpr std::size_t kMostEarly =
    65536;  // messages for groups that are not formed; the directory has a limit

void require(bool condition) {
  if (!condition) std::abort();
}

struct Input {
  std::span<const std::uint8_t> rest;
  std::uint8_t byte() {
    if (rest.empty()) return 0;
    const std::uint8_t first = rest[0];
    rest = rest.subspan(1);
    return first;
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  /// Mostly one of few, so that messages belong together; sometimes anything.
  std::uint64_t some(std::uint64_t few) {
    const std::uint8_t chosen = byte();
    return chosen >= 0xf0 ? number() : chosen % few;
  }
  /// What a string field can hold: others do not pass the parser.
  std::string text() {
    const std::size_t length = byte() % 16;
    std::string value;
    for (std::size_t i = 0; i < length; ++i) value += static_cast<char>(byte());
    return base::valid_utf8(value);
  }
  std::span<const std::uint8_t> bytes(std::size_t count) {
    const auto first = rest.first(std::min(count, rest.size()));
    rest = rest.subspan(first.size());
    return first;
  }
};

/// Every field of the message set from the input, by reflection: whatever fields it has or comes to have.
void fill(google::protobuf::Message& message, Input& input, int depth);

void fill_field(google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field,
                Input& input, int depth) {
  using Field = google::protobuf::FieldDescriptor;
  const auto* reflection = message.GetReflection();
  if (field.is_repeated()) {
    if (field.cpp_type() != Field::CPPTYPE_MESSAGE) return;
    for (int i = input.byte() % 3; i > 0; --i)
      fill(*reflection->AddMessage(&message, &field), input, depth + 1);
    return;
  }
  switch (field.cpp_type()) {
    case Field::CPPTYPE_INT32:
      return reflection->SetInt32(&message, &field, static_cast<std::int32_t>(input.some(4) - 1));
    case Field::CPPTYPE_INT64:
      return reflection->SetInt64(&message, &field, static_cast<std::int64_t>(input.some(2'000'000)));
    case Field::CPPTYPE_UINT32:
      return reflection->SetUInt32(&message, &field, static_cast<std::uint32_t>(input.some(4)));
    case Field::CPPTYPE_UINT64: return reflection->SetUInt64(&message, &field, input.some(4));
    case Field::CPPTYPE_BOOL: return reflection->SetBool(&message, &field, input.byte() % 2 == 1);
    case Field::CPPTYPE_STRING:
      return reflection->SetString(&message, &field, input.byte() % 4 != 0 ? "g" : input.text());
    case Field::CPPTYPE_MESSAGE: return fill(*reflection->MutableMessage(&message, &field), input, depth + 1);
    default: return;
  }
}

void fill(google::protobuf::Message& message, Input& input, int depth) {
  if (depth > 3) return;
  const auto* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    if (type->field(i)->containing_oneof() == nullptr) fill_field(message, *type->field(i), input, depth);
  }
}

/// A message of one of the kinds that reach the directory.
v1::PeerMessage made_of(Input& input) {
  v1::PeerMessage message;
  const auto* type = message.GetDescriptor()->FindOneofByName("body");
  const auto* body = type->field(input.byte() % type->field_count());
  fill(*message.GetReflection()->MutableMessage(&message, body), input, 0);
  return message;
}

/// Node 0 is the victim, and a rank of two groups waits there. Nodes 1 and 2 hear nothing: what they say is
/// the input.
struct Rig {
  Rig() {
    for (const std::size_t other : {1, 2}) cluster.hold(0, other);
    cluster.join(0, "g", 0, 2);
    cluster.join(0, "h", 1, 3);
    cluster.settle();
  }
  std::size_t dropped() const { return cluster.dropped.size(); }

  DirectoryCluster cluster{3};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input{{data, size}};
  Rig rig;
  std::size_t said = 0;
  // The ids under which DirectoryCluster makes nodes 1 and 2 known to node 0: two for each pair, in order.
  const transport::PeerId peers[] = {2, 4};
  while (!input.rest.empty() && rig.dropped() == 0) {
    const std::uint8_t how = input.byte();
    const std::size_t bytes = input.byte() | std::size_t{input.byte()} << 8;
    const auto content = input.bytes(bytes);
    v1::PeerMessage message;
    if ((how & 2) != 0) {
      if (!message.ParseFromArray(content.data(), static_cast<int>(content.size()))) continue;
    } else {
      Input fields{content};
      message = made_of(fields);
    }
    rig.cluster.directory(0).received(peers[how & 1], message);
    ++said;
    if ((how & 4) != 0) rig.cluster.ready_all();
    if ((how & 8) != 0) rig.cluster.advance(how & 0xf0);
    rig.cluster.settle();
    require(rig.cluster.directory(0).member_count() <= said + 2);
    require(rig.cluster.directory(0).early_count() <= kMostEarly);
  }
  for (const std::string& why : rig.cluster.dropped) require(!why.empty());
  for (const auto& rank : rig.cluster.ranks) {
    require(rank->failures <= 1);
    if (rank->is_formed()) require(rank->formed->value().members.size() >= 2);
  }
  rig.cluster.advance(10'000);  // every time runs out
  return 0;
}
