// Our store client against whatever store runs at HOST PORT, which must be empty: PyTorch's libuv or
// legacy server, or ours. Ends with 0 when it found what the protocol promises, else says what not.
// The third argument names the kind: "legacy" has no queues, "ours" also serves BARRIER.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "rendezvous/store_client/store_client.h"

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
  EXPECT_HOLDS((*store)->count_in().value() == 1);
}
