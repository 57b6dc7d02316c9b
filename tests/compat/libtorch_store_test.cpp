// LibTorch's own TCPStore client, unmodified, against our server: what a C++ training program uses
// without knowing. (store_python_test.py does the same through Python.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tests/support/store_process.h"

namespace ddprun::rdzv::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Bytes = std::vector<std::uint8_t>;

Bytes bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string text(const Bytes& value) { return {value.begin(), value.end()}; }

template <typename Call>
std::string what_is_thrown(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class LibTorchStore : public ::testing::Test {
 protected:
  c10::intrusive_ptr<c10d::TCPStore> connect(std::optional<std::size_t> workers = {}) {
    c10d::TCPStoreOptions options;
    options.port = server_.port();
    options.numWorkers = workers;
    options.waitWorkers = workers.has_value();
    options.timeout = 20s;
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  StoreProcess server_;
};

TEST_F(LibTorchStore, SetsGetsAddsAndDeletes) {
  const auto store = connect();
  store->set("key", bytes("value"));
  EXPECT_EQ(text(store->get("key")), "value");
  EXPECT_EQ(store->add("count", 5), 5);
  EXPECT_EQ(store->add("count", -7), -2);
  EXPECT_EQ(text(store->get("count")), "-2");
  EXPECT_TRUE(store->check({"key", "count"}));
  EXPECT_FALSE(store->check({"key", "absent"}));
  EXPECT_TRUE(store->deleteKey("key"));
  EXPECT_FALSE(store->deleteKey("key"));
  EXPECT_EQ(store->getNumKeys(), 1);
}

TEST_F(LibTorchStore, CarriesLargeAndEmptyValues) {
  const auto store = connect();
  for (const std::size_t size : {0u, 1439u, 1441u, 100'000u, 8u << 20}) {
    Bytes value(size);
    std::uint8_t next = 0;
    for (auto& byte : value) byte = next += 7;
    store->set("large", value);
    EXPECT_EQ(store->get("large"), value) << size;
  }
}

TEST_F(LibTorchStore, ComparesAndSets) {
  const auto store = connect();
  EXPECT_EQ(text(store->compareSet("k", bytes("expected"), bytes("new"))), "expected");
  EXPECT_FALSE(store->check({"k"}));
  EXPECT_EQ(text(store->compareSet("k", {}, bytes("first"))), "first");
  EXPECT_EQ(text(store->compareSet("k", bytes("other"), bytes("second"))), "first");
  EXPECT_EQ(text(store->compareSet("k", bytes("first"), bytes("second"))), "second");
}

TEST_F(LibTorchStore, AppendsAndTakesManyAtOnce) {
  const auto store = connect();
  EXPECT_TRUE(store->hasExtendedApi());
  store->append("log", bytes("a"));
  store->append("log", bytes("bc"));
  EXPECT_EQ(text(store->get("log")), "abc");
  store->multiSet({"a", "b"}, {bytes("1"), bytes("")});
  EXPECT_EQ(store->multiGet({"b", "a"}), (std::vector<Bytes>{bytes(""), bytes("1")}));
  EXPECT_THAT(store->listKeys(), UnorderedElementsAre("a", "b", "log"));
}

TEST_F(LibTorchStore, AWaitThatTimesOutLeavesTheConnectionUsable) {
  const auto store = connect();
  EXPECT_THAT(what_is_thrown([&] {
                store->wait({"a", "b"}, 50ms);
              }),
              HasSubstr("wait timeout after 50ms, keys: /a, /b"));
  store->set("a", bytes("1"));
  EXPECT_EQ(text(store->get("a")), "1");
}

TEST_F(LibTorchStore, AWaitIsReleasedByAnotherClient) {
  const auto waiter = connect();
  const auto setter = connect();
  std::thread thread([&] {
    setter->set("x", bytes("1"));
    setter->add("y", 1);
  });
  waiter->wait({"x", "y"}, 20s);
  thread.join();
  EXPECT_EQ(text(waiter->get("y")), "1");
}

TEST_F(LibTorchStore, CountsItsWorkersIn) {
  connect(/*workers=*/1);
  const auto store = connect(/*workers=*/2);
  EXPECT_EQ(store->getNumKeys(), 1) << "init/";
}

TEST_F(LibTorchStore, PrefixesNestAndAClonesConnectionIsItsOwn) {
  const auto store = connect();
  const auto clone = store->clone();
  const auto outer = c10::make_intrusive<c10d::PrefixStore>("out", clone);
  const auto inner = c10::make_intrusive<c10d::PrefixStore>("in", outer);
  inner->set("k", bytes("v"));
  inner->wait({"k"}, 20s);
  EXPECT_EQ(text(store->get("out/in/k")), "v");
  EXPECT_EQ(inner->add("n", 2), 2);
  EXPECT_TRUE(inner->deleteKey("n"));

  // One connection waits; the clone's is free meanwhile.
  std::thread setter([&] { clone->set("late", bytes("here")); });
  EXPECT_EQ(text(store->get("late")), "here");
  setter.join();
}

TEST_F(LibTorchStore, QueuesGiveEachItemOnce) {
  const auto store = connect();
  store->queuePush("q", bytes("1"));
  store->queuePush("q", bytes("22"));
  EXPECT_EQ(store->queueLen("q"), 2);
  EXPECT_EQ(text(store->queuePop("q", /*block=*/true)), "1");
  EXPECT_EQ(text(store->queuePop("q", /*block=*/false)), "22");
  EXPECT_THAT(what_is_thrown([&] { store->queuePop("q", /*block=*/false); }),
              HasSubstr("queue is empty"));

  const auto other = connect();
  std::thread pusher([&] { other->queuePush("q", bytes("late")); });
  EXPECT_EQ(text(store->queuePop("q", /*block=*/true)), "late");
  pusher.join();
}

TEST_F(LibTorchStore, AnAddToTextEndsOnlyThatClient) {
  const auto store = connect();
  const auto other = connect();
  store->set("text", bytes("abc"));
  EXPECT_THAT(what_is_thrown([&] { store->add("text", 1); }), HasSubstr("closed"));
  EXPECT_EQ(text(other->get("text")), "abc");
}

TEST_F(LibTorchStore, ManyClientsCountTogether) {
  constexpr int kClients = 8;
  constexpr int kEach = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([store = connect()] {
      for (int j = 0; j < kEach; ++j) store->add("n", 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(connect()->add("n", 0), kClients * kEach);
}

}  // namespace
}  // namespace ddprun::rdzv::testing
