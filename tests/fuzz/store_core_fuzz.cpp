// Several clients of one small store, who send anything: the core's books must balance at every
// end.
#include <array>
#include <cstdlib>
#include <optional>

#include "rendezvous/store_wire/store_encoder.h"
#include "tests/fuzz/store_fuzz.h"
#include "tests/unit/rendezvous/store/memory_store.h"

using namespace ddprun::rdzv;
using namespace ddprun::rdzv::testing;

namespace {

constexpr std::string_view kHandshake("\x00\xce\xf7\x85\x3c", 5);
constexpr std::size_t kMemory = std::size_t{64} * 1024;  // small enough to be reached

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  MemoryStore store(kMemory);
  std::array<std::optional<ClientId>, kFuzzClients> clients;
  std::string_view script(reinterpret_cast<const char*>(data), size);
  while (!script.empty()) {
    const auto head = static_cast<unsigned char>(script.front());
    script.remove_prefix(1);
    auto& client = clients[head & 3];
    if (!client) {
      client = store.connect();
      store.send(*client, kHandshake);
    }
    if (head >> 2 == kFuzzLeave) {
      store.disconnect(*client);
      client.reset();
      continue;
    }
    const std::string_view bytes = script.substr(0, head >> 2);
    script.remove_prefix(bytes.size());
    if (!store.send(*client, bytes)) client.reset();
    require(store.core().bytes() <= kMemory);
  }
  for (const auto& client : clients) {
    if (client) store.disconnect(*client);
  }
  const auto stats = store.core().stats();
  require(stats.waiting_clients == 0);
  require((stats.keys + stats.queues == 0) == (stats.bytes == 0));
  return 0;
}
