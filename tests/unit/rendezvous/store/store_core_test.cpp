// What neither the transcripts nor the model say: memory, limits, the order of our own choices.
#include "rendezvous/store/store_core.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "rendezvous/store_wire/store_encoder.h"
#include "tests/unit/rendezvous/store/golden.h"
#include "tests/unit/rendezvous/store/memory_store.h"

namespace ddprun::rdzv::testing {
namespace {

using wire::Query;
using wire::RequestEncoder;

const std::string kReleased(1, wire::kStopWaiting);

ClientId join(MemoryStore& store) {
  const ClientId client = store.connect();
  store.send(client, kHandshake);
  return client;
}

std::string set(std::string_view key, std::string_view value) {
  return RequestEncoder(Query::kSet).bytes(key).bytes(value).str();
}

std::string wait(std::initializer_list<std::string_view> keys) {
  RequestEncoder request(Query::kWait);
  request.number<std::uint64_t>(keys.size());
  for (const auto key : keys) request.bytes(key);
  return request.str();
}

std::string push(std::string_view key) {
  return RequestEncoder(Query::kQueuePush).bytes(key).bytes("item").str();
}

TEST(StoreCore, SecondWaitReplacesTheFirst) {
  MemoryStore store;
  const ClientId a = join(store), b = join(store);
  store.send(a, wait({"first"}) + wait({"second"}));
  store.send(b, set("first", "1"));
  EXPECT_EQ(store.take(a), "");
  store.send(b, set("second", "1"));
  EXPECT_EQ(store.take(a), kReleased);
}

TEST(StoreCore, ErasesTheNamesThatAreObsoleteAndNothingElse) {
  MemoryStore store;
  const ClientId a = join(store), b = join(store);
  const std::size_t empty = store.core().bytes();
  store.send(a, set("old/long", std::string(100'000, 'x')) + set("old/k", "v") + push("old/q") +
                    push("old/q"));
  store.send(b, wait({"old/never"}));
  store.core().erase_if([](std::string_view name) { return name.starts_with("old/"); });
  EXPECT_EQ(store.core().stats().keys, 0U);
  EXPECT_EQ(store.core().stats().queues, 0U);
  EXPECT_EQ(store.core().stats().waiting_clients, 1U);
  store.send(a, set("old/never", "1"));
  EXPECT_EQ(store.take(b), kReleased);
  store.send(a, set("new", "v"));
  store.core().erase_if([](std::string_view name) { return name.starts_with("old/"); });
  EXPECT_EQ(store.core().stats().keys, 1U);
  store.core().erase_if([](std::string_view) { return true; });
  EXPECT_EQ(store.core().bytes(), empty);
}

TEST(StoreCore, HoldsNothingWhenAllIsDeletedPoppedAndGone) {
  MemoryStore store;
  const ClientId a = join(store);
  const std::size_t empty = store.core().bytes();
  store.send(a, set("k", "v") + set("long", std::string(100'000, 'x')) + push("q") + push("q") +
                    wait({"x", "y", "x"}));
  EXPECT_GT(store.core().bytes(), empty + 100'000);
  EXPECT_EQ(store.core().stats().waiting_clients, 1u);
  for (const auto key : {"k", "long"})
    store.send(a, RequestEncoder(Query::kDeleteKey).bytes(key).str());
  for (int i = 0; i < 2; ++i) store.send(a, RequestEncoder(Query::kQueuePop).bytes("q").str());
  store.disconnect(a);
  EXPECT_EQ(store.core().bytes(), empty);
  EXPECT_EQ(store.core().stats().waiting_clients, 0u);
  EXPECT_EQ(store.core().stats().keys, 0u);
  EXPECT_EQ(store.core().stats().queues, 0u);
}

TEST(StoreCore, RefusesWhatExceedsItsMemoryAndChangesNothing) {
  MemoryStore store(/*memory_limit=*/100'000);
  const ClientId keeper = join(store);
  ASSERT_TRUE(store.send(keeper, set("kept", "value")));
  const std::string big(1000, 'x');
  int stored = 0;
  for (;; ++stored) {
    const ClientId client = join(store);
    if (!store.send(client, set("fill" + std::to_string(stored), big))) break;
    ASSERT_LT(stored, 200);
  }
  EXPECT_GT(stored, 50);
  EXPECT_LE(store.core().bytes(), 100'000u);
  const std::size_t full = store.core().bytes();
  std::string entries = std::string(1, '\x0b') + std::string("\x02\0\0\0\0\0\0\0", 8);
  for (const auto key : {"m1", "m2"})
    entries += RequestEncoder(Query::kPing).bytes(key).bytes(big).str().substr(1);
  for (const auto& request :
       {set("new", big), entries, RequestEncoder(Query::kAppend).bytes("kept").bytes(big).str()}) {
    const ClientId client = join(store);
    EXPECT_FALSE(store.send(client, request));
    EXPECT_EQ(store.core().bytes(), full);
  }
  // Reading, replacing by what is no longer, and deleting go on.
  store.send(keeper, set("fill0", "short") + RequestEncoder(Query::kGet).bytes("kept").str());
  EXPECT_EQ(store.take(keeper), std::string("\5\0\0\0\0\0\0\0value", 13));
}

TEST(StoreCore, BoundsOneReply) {
  MemoryStore store;
  const ClientId client = join(store);
  const std::string value(limits::kMaxValueBytes, 'x');
  store.send(client, set("v", value));
  RequestEncoder within(Query::kMultiGet), beyond(Query::kMultiGet);
  within.number<std::uint64_t>(31);
  for (int i = 0; i < 31; ++i) within.bytes("v");
  EXPECT_TRUE(store.send(client, within.str()));
  beyond.number<std::uint64_t>(33);
  for (int i = 0; i < 33; ++i) beyond.bytes("v");
  EXPECT_FALSE(store.send(client, beyond.str()));
}

TEST(StoreCore, AppendLeavesAReplyOnItsWayAsItWas) {
  MemoryStore store;
  const ClientId client = join(store);
  const std::string value(limits::kDetachedValueBytes, 'x');
  store.send(client, set("k", value) + RequestEncoder(Query::kGet).bytes("k").str() +
                         RequestEncoder(Query::kAppend).bytes("k").bytes("y").str() +
                         RequestEncoder(Query::kGet).bytes("k").str());
  const std::string got = store.take(client);
  ASSERT_EQ(got.size(), 8 + value.size() + 8 + value.size() + 1);
  EXPECT_EQ(got.substr(8, value.size()), value);
  EXPECT_EQ(got.back(), 'y');
}

TEST(StoreCore, AppendsInLinearTime) {
  MemoryStore store;
  const ClientId client = join(store);
  const std::string part(4096, 'x');
  for (int i = 0; i < 4096; ++i)
    store.send(client, RequestEncoder(Query::kAppend).bytes("k").bytes(part).str());
  store.send(client, RequestEncoder(Query::kGet).bytes("k").str());
  EXPECT_EQ(store.take(client).size(), 8 + 4096 * part.size());
}

TEST(StoreCore, WakesTheNextWhenTheWokenTimesOutInsteadOfPopping) {
  MemoryStore store;
  const ClientId a = join(store), b = join(store), c = join(store);
  store.send(a, wait({"q"}));
  store.send(b, wait({"q"}));
  store.send(c, push("q"));
  EXPECT_EQ(store.take(a), kReleased);
  EXPECT_EQ(store.take(b), "");
  store.send(a, RequestEncoder(Query::kCancelWait).str());  // it crossed the release
  EXPECT_EQ(store.take(b), kReleased);
}

TEST(StoreCore, PassesOverAWaiterThatMissesMore) {
  MemoryStore store;
  const ClientId a = join(store), b = join(store), c = join(store);
  store.send(a, wait({"q", "other"}));
  store.send(b, wait({"q"}));
  store.send(c, push("q"));
  EXPECT_EQ(store.take(a), "");
  EXPECT_EQ(store.take(b), kReleased);
  store.send(c, set("other", ""));  // it has seen the queue
  EXPECT_EQ(store.take(a), kReleased);
}

TEST(StoreCore, EndsWaitsOfManyKeysInAnyOrder) {
  MemoryStore store;
  const ClientId a = join(store), b = join(store);
  constexpr int kKeys = 10'000;
  RequestEncoder request(Query::kWait);
  request.number<std::uint64_t>(kKeys);
  for (int i = 0; i < kKeys; ++i) request.bytes(std::to_string(i));
  store.send(a, request.str());
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_EQ(store.take(a), "");
    store.send(b, set(std::to_string(i * 7919 % kKeys), "v"));
  }
  EXPECT_EQ(store.take(a), kReleased);
}

std::string barrier(std::string_view key, std::int64_t world_size) {
  return RequestEncoder(Query::kBarrier).bytes(key).number(world_size).str();
}

TEST(StoreBarrier, ReleasesAllWithTheLastAndPlainWaitersBegunBefore) {
  MemoryStore store;
  const ClientId early = join(store), a = join(store), b = join(store), c = join(store);
  store.send(early, wait({"bar"}));
  store.send(a, barrier("bar", 3));
  store.send(b, barrier("bar", 3));
  EXPECT_EQ(store.take(early) + store.take(a) + store.take(b), "");
  store.send(c, barrier("bar", 3));
  for (const ClientId client : {early, a, b, c}) EXPECT_EQ(store.take(client), kReleased);
}

TEST(StoreBarrier, LaterArrivalsPassAndTheCountIsAnOrdinaryKey) {
  MemoryStore store;
  const ClientId a = join(store);
  store.send(
      a, barrier("bar", 1) + barrier("bar", 1) + RequestEncoder(Query::kGet).bytes("bar").str());
  EXPECT_EQ(store.take(a), kReleased + kReleased + std::string("\1\0\0\0\0\0\0\0002", 9));
}

TEST(StoreBarrier, CountsThoseWhoGaveUpOrDied) {
  MemoryStore store;
  const ClientId a = join(store), b = join(store), c = join(store);
  store.send(a, barrier("bar", 3) + RequestEncoder(Query::kCancelWait).str());
  EXPECT_EQ(store.take(a), std::string(1, wire::kWaitCanceled));
  store.send(b, barrier("bar", 3));
  store.disconnect(b);
  store.send(c, barrier("bar", 3));
  EXPECT_EQ(store.take(c), kReleased);
  EXPECT_EQ(store.take(a), "") << "nothing may follow a cancelled wait";
}

TEST(StoreBarrier, ClosesOnATextAndTakesANumberAsTheCountSoFar) {
  MemoryStore store;
  const ClientId a = join(store), b = join(store);
  store.send(a, set("text", "abc") + set("number", "1"));
  EXPECT_FALSE(store.send(b, barrier("text", 1)));
  EXPECT_TRUE(store.send(a, barrier("number", 2)));
  EXPECT_EQ(store.take(a), kReleased);
}

TEST(StoreBarrier, ReplacesAWaitOfTheSameClient) {
  MemoryStore store;
  const ClientId a = join(store), b = join(store);
  store.send(a, wait({"other"}) + barrier("bar", 2));
  store.send(b, set("other", "1"));
  EXPECT_EQ(store.take(a), "");
  store.send(b, barrier("bar", 2));
  EXPECT_EQ(store.take(a), kReleased);
}

TEST(StoreDecoder, HoldsAtMostAFewBytesBeforeValidate) {
  MemoryStore store;
  const ClientId client = store.connect();
  for (const char c : kHandshake.substr(0, 4)) EXPECT_TRUE(store.send(client, std::string(1, c)));
  EXPECT_LE(store.decoder(client).held_bytes(), 1024u);
}

TEST(StoreDecoder, HoldsNothingBetweenRequests) {
  MemoryStore store;
  const ClientId client = join(store);
  const std::string request = set("k", std::string(1'000'000, 'x'));
  store.send(client, std::string_view(request).substr(0, 600'000));
  EXPECT_GE(store.decoder(client).held_bytes(), 600'000u);
  EXPECT_LE(store.decoder(client).held_bytes(), 4 * 600'000u);
  store.send(client, std::string_view(request).substr(600'000));
  EXPECT_EQ(store.decoder(client).held_bytes(), 0u);
}

TEST(StoreDecoder, HoldsAtMostFourTimesWhatHasArrivedOfAList) {
  MemoryStore store;
  const ClientId client = join(store);
  RequestEncoder request(Query::kMultiSet);
  request.number<std::uint64_t>(3);
  for (const char* key : {"a", "b", "c"}) request.bytes(key).bytes(std::string(3'000'000, 'x'));
  constexpr std::size_t kPiece = 10'000;
  constexpr std::size_t kFirst = 300'000;  // whatever small values take
  for (std::size_t sent = kPiece; sent < request.str().size(); sent += kPiece) {
    store.send(client, std::string_view(request.str()).substr(sent - kPiece, kPiece));
    ASSERT_LE(store.decoder(client).held_bytes(), std::max(kFirst, 4 * sent)) << sent;
  }
}

TEST(StoreDecoder, AllocatesNothingForAnAnnouncedLength) {
  MemoryStore store;
  const ClientId client = join(store);
  RequestEncoder announced(Query::kSet);
  announced.bytes("k").number<std::uint64_t>(limits::kMaxValueBytes);
  store.send(client, announced.str());
  EXPECT_LE(store.decoder(client).held_bytes(), 1024u);
}

TEST(StoreDecoder, BoundsOneRequest) {
  MemoryStore store;
  const ClientId client = join(store);
  RequestEncoder head(Query::kMultiSet);
  head.number<std::uint64_t>(limits::kMaxListItems);
  ASSERT_TRUE(store.send(client, head.str()));
  const std::string entry =
      RequestEncoder(Query::kPing).bytes("k").bytes(std::string(1 << 20, 'x')).str().substr(1);
  std::size_t sent = 0;
  while (store.send(client, entry)) {
    sent += entry.size();
    ASSERT_LE(sent, limits::kMaxRequestBytes + entry.size());
  }
  EXPECT_GE(sent + entry.size(), limits::kMaxRequestBytes);
}

}  // namespace
}  // namespace ddprun::rdzv::testing
