// One connection's bytes: however they are cut, the replies and the fate of the connection are the
// same.
#include <cstdlib>

#include "tests/unit/rendezvous/store/memory_store.h"

using namespace ddprun::rdzv;
using namespace ddprun::rdzv::testing;

namespace {

struct Outcome {
  std::string replies;
  bool is_open;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome feed(std::string_view bytes, unsigned cut) {
  MemoryStore store;
  const ClientId client = store.connect();
  bool is_open = true;
  while (!bytes.empty() && is_open) {
    const std::string_view part = bytes.substr(0, cut);
    is_open = store.send(client, part);
    bytes.remove_prefix(part.size());
    cut = cut * 5 % 31 + 1;
  }
  return {store.take(client), is_open};
}

}  // namespace

// The first byte says how to cut the rest.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = feed(bytes, 1u << 30);
  if (feed(bytes, 1 + data[0] % 31) != whole) std::abort();
  return 0;
}
