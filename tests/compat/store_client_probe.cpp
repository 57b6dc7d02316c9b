// Our store clients, the blocking one and then the asynchronous one, against whatever store runs at
// HOST PORT, which must be empty: PyTorch's libuv or legacy server, or ours. Ends with 0 when it
// found what the protocol promises, else says what not. The third argument names the kind: "legacy"
// has no queues, "ours" also serves BARRIER.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "rendezvous/async_store_client.h"
#include "rendezvous/store_client.h"

using namespace ddprun;
using namespace ddprun::rdzv;
using namespace std::chrono_literals;

namespace {

void expect(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "store_client_probe: does not hold: %s\n", claim);
  std::exit(1);
}

#define EXPECT_HOLDS(claim) expect(static_cast<bool>(claim), #claim)

void check_values(StoreClient& store) {
  EXPECT_HOLDS(store.set("k", "value"));
  EXPECT_HOLDS(store.get("k").value() == "value");
  EXPECT_HOLDS(store.add("n", 5).value() == 5);
  EXPECT_HOLDS(store.add("n", -7).value() == -2);
  EXPECT_HOLDS(store.compare_set("c", "", "first").value() == "first");
  EXPECT_HOLDS(store.compare_set("c", "first", "second").value() == "second");
  EXPECT_HOLDS(store.compare_set("c", "other", "third").value() == "second");
  EXPECT_HOLDS(store.append("c", "!"));
  EXPECT_HOLDS(store.get("c").value() == "second!");
  EXPECT_HOLDS(store.multi_set({"a", "b"}, {"1", "2"}));
  EXPECT_HOLDS((store.multi_get({"b", "a"}).value() == std::vector<std::string>{"2", "1"}));
  EXPECT_HOLDS(store.check({"a", "b"}).value());
  EXPECT_HOLDS(!store.check({"a", "absent"}).value());
  EXPECT_HOLDS(store.num_keys().value() == 5);
  EXPECT_HOLDS(store.list_keys().value().size() == 5);
  EXPECT_HOLDS(store.delete_key("a").value());
  EXPECT_HOLDS(!store.delete_key("a").value());
  const std::string large(8 << 20, 'x');
  EXPECT_HOLDS(store.set("large", large));
  EXPECT_HOLDS(store.get("large").value() == large);
}

void check_waiting(StoreClient& store) {
  auto other = store.clone().value();
  std::thread setter([&] { EXPECT_HOLDS(other->set("late", "here")); });
  EXPECT_HOLDS(store.get("late", 10s).value() == "here");
  setter.join();
  EXPECT_HOLDS(store.wait({"never"}, 50ms).error().code == ErrorCode::kTimeout);
  EXPECT_HOLDS(store.get("never", 0ms).error().code == ErrorCode::kTimeout);
  EXPECT_HOLDS(store.get("late", 0ms).value() == "here");
  EXPECT_HOLDS(store.ping());
}

void check_queues(StoreClient& store) {
  EXPECT_HOLDS(store.queue_push("q", "1"));
  EXPECT_HOLDS(store.queue_len("q").value() == 1);
  EXPECT_HOLDS(store.queue_pop("q").value() == "1");
  EXPECT_HOLDS(!store.try_queue_pop("q").value().has_value());
  EXPECT_HOLDS(store.queue_pop("q", 50ms).error().code == ErrorCode::kTimeout);
}

// Lists are given names: g++ 12 destroys temporaries of a co_await expression too early.
boost::asio::awaitable<void> check_async(StoreClientOptions options, std::string kind,
                                         bool& is_done) {
  auto connected = co_await AsyncStoreClient::connect(std::move(options));
  EXPECT_HOLDS(connected);
  AsyncStoreClient& store = **connected;
  const std::vector<std::string> keys{"async/a", "async/b"}, values{"1", "2"}, absent{"async/no"};
  const std::int64_t keys_before = (co_await store.num_keys()).value();
  EXPECT_HOLDS(co_await store.multi_set(keys, values));
  EXPECT_HOLDS((co_await store.multi_get(keys)).value() == values);
  EXPECT_HOLDS((co_await store.check(keys)).value());
  EXPECT_HOLDS(!(co_await store.check(absent)).value());
  EXPECT_HOLDS((co_await store.num_keys()).value() == keys_before + 2);
  EXPECT_HOLDS((co_await store.add("async/n", 5)).value() == 5);
  EXPECT_HOLDS((co_await store.add("async/n", -7)).value() == -2);
  EXPECT_HOLDS((co_await store.compare_set("async/c", "", "first")).value() == "first");
  EXPECT_HOLDS((co_await store.compare_set("async/c", "other", "second")).value() == "first");
  EXPECT_HOLDS(co_await store.append("async/c", "!"));
  EXPECT_HOLDS((co_await store.get("async/c")).value() == "first!");
  EXPECT_HOLDS((co_await store.delete_key("async/c")).value());
  EXPECT_HOLDS(!(co_await store.delete_key("async/c")).value());
  const std::string large(8 << 20, 'y');
  EXPECT_HOLDS(co_await store.set("async/large", large));
  EXPECT_HOLDS((co_await store.get("async/large")).value() == large);

  EXPECT_HOLDS((co_await store.wait(absent, 50ms)).error().code == ErrorCode::kTimeout);
  auto other = co_await store.clone();
  EXPECT_HOLDS(other);
  EXPECT_HOLDS(co_await (*other)->set("async/late", "here"));
  EXPECT_HOLDS((co_await store.get("async/late", 10s)).value() == "here");
  EXPECT_HOLDS(co_await store.ping());

  if (kind != "legacy") {
    EXPECT_HOLDS(co_await store.queue_push("async/q", "1"));
    EXPECT_HOLDS((co_await store.queue_len("async/q")).value() == 1);
    EXPECT_HOLDS((co_await store.queue_pop("async/q")).value() == "1");
    EXPECT_HOLDS(!(co_await store.try_queue_pop("async/q")).value().has_value());
  }
  if (kind == "ours") {
    EXPECT_HOLDS((co_await store.barrier("async/b2", 2, 50ms)).error().code == ErrorCode::kTimeout);
    EXPECT_HOLDS(co_await store.barrier("async/b2", 2));
  }
  is_done = true;
}

void check_asynchronous_client(const StoreClientOptions& options, const std::string& kind) {
  boost::asio::io_context io;
  bool is_done = false;
  boost::asio::co_spawn(io, check_async(options, kind, is_done), [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  });
  io.run();
  EXPECT_HOLDS(is_done);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string kind = argv[3];
  const StoreClientOptions options{
      .server = {argv[1], static_cast<std::uint16_t>(std::atoi(argv[2]))},
      .connect_timeout = 10s,
      .timeout = 10s};
  auto store = StoreClient::connect(options);
  if (!store) {
    std::fprintf(stderr, "store_client_probe: %s\n", store.error().to_string().c_str());
    return 1;
  }
  check_values(**store);
  check_waiting(**store);
  if (kind != "legacy") check_queues(**store);
  if (kind == "ours") EXPECT_HOLDS((*store)->barrier("b", 1));
  check_asynchronous_client(options, kind);
  EXPECT_HOLDS((*store)->count_in().value() == 1);
}
