// Every recorded transcript against decoder and core: whole, byte by byte and in pieces.
#include <gtest/gtest.h>

#include "tests/unit/rendezvous/store/golden.h"
#include "tests/unit/rendezvous/store/memory_store.h"

namespace ddprun::rdzv::testing {
namespace {

using Cut = std::vector<std::string> (*)(std::string_view);

std::vector<std::string> whole(std::string_view bytes) { return {std::string(bytes)}; }

std::vector<std::string> byte_by_byte(std::string_view bytes) {
  std::vector<std::string> parts;
  for (const char c : bytes) parts.emplace_back(1, c);
  return parts;
}

std::vector<std::string> in_sevens(std::string_view bytes) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < bytes.size(); i += 7) parts.emplace_back(bytes.substr(i, 7));
  return parts;
}

void replay(const GoldenTranscript& transcript, Cut cut) {
  MemoryStore store;
  const ClientId setup = store.connect();
  store.send(setup, kHandshake);
  for (const auto& request : transcript.setup) store.send(setup, request);

  std::map<char, ClientId> clients;
  for (std::size_t i = 0; i < transcript.steps.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    const GoldenStep& step = transcript.steps[i];
    if (!clients.contains(step.connection)) {
      clients[step.connection] = store.connect();
      if (transcript.starts_validated) store.send(clients[step.connection], kHandshake);
    }
    const ClientId client = clients[step.connection];
    if (step.client_closes) {
      store.disconnect(client);
      continue;
    }
    for (const auto& part : cut(step.sent)) store.send(client, part);
    ASSERT_EQ(to_hex(store.take(client)), to_hex(step.expected));
    if (!step.shuts_down) {
      ASSERT_EQ(store.is_open(client), !step.closes);
    }
    for (const auto& [name, other] :
         clients) {  // nobody else may have been sent a byte that nobody expects
      if (i + 1 == transcript.steps.size()) {
        ASSERT_EQ(to_hex(store.take(other)), "") << "on connection " << name;
      }
    }
  }
}

class StoreGolden : public ::testing::TestWithParam<GoldenTranscript> {};

TEST_P(StoreGolden, AnswersAsRecorded) { replay(GetParam(), whole); }
TEST_P(StoreGolden, AnswersTheSameByteByByte) { replay(GetParam(), byte_by_byte); }
TEST_P(StoreGolden, AnswersTheSameInPieces) { replay(GetParam(), in_sevens); }

INSTANTIATE_TEST_SUITE_P(Transcripts, StoreGolden, ::testing::ValuesIn(load_golden()),
                         [](const auto& test) { return test.param.name; });

TEST(StoreGoldenFile, HoldsAllTranscripts) { EXPECT_EQ(load_golden().size(), 126u); }

}  // namespace
}  // namespace ddprun::rdzv::testing
