#include "worker_lib/checkpoint/tensor_arrays.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace ddprun {
namespace {

NamedTensors sample() {
  return {{"bool", torch::arange(5).remainder(2).to(torch::kBool)},
          {"complex", torch::randn({3}, torch::kComplexFloat)},
          {"double", torch::randn({2, 3}, torch::kFloat64)},
          {"empty", torch::empty({0, 4})},
          {"half", torch::randn({7}, torch::kHalf)},
          {"last", torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
          {"scalar", torch::scalar_tensor(5, torch::kInt64)},
          {"transposed", torch::randn({4, 6}).t()}};
}

TEST(ArrayReceiver, TakesTheDataOfAFileInPiecesOfAnySize) {
  const NamedTensors tensors = sample();
  ArrayBuffer buffer;
  buffer.copy(tensors);
  const std::string data(buffer.bytes());
  const std::string head = safetensors::pack_head({}, buffer.places(), data);
  const auto places = safetensors::read_head(head, head.size() + data.size()).places;

  const auto described = described_by(places);
  ASSERT_EQ(described.size(), tensors.size());
  for (const std::size_t size : {std::size_t{1}, std::size_t{3}, std::size_t{64}, data.size()}) {
    std::vector<torch::Tensor> received;
    for (const Described& each : described) {
      const torch::Tensor& tensor = tensors.at(std::string(each.name));
      EXPECT_EQ(each.sizes, tensor.sizes());
      EXPECT_EQ(each.type, tensor.scalar_type());
      received.push_back(torch::zeros_like(tensor));
    }
    ArrayReceiver receiver(places, received);
    for (std::size_t at = 0; at < data.size(); at += size) {
      const std::string piece = data.substr(at, size);
      receiver.take(piece);
    }
    for (std::size_t i = 0; i < received.size(); ++i) {
      const torch::Tensor& tensor = tensors.at(places[i].name);
      EXPECT_TRUE(torch::equal(received[i], tensor)) << places[i].name << " in pieces of " << size;
      EXPECT_EQ(received[i].strides(), tensor.strides()) << places[i].name;
    }
  }
}

TEST(ArrayBuffer, TakesTheMemoryThatTheStateNeedsAndGivesItBack) {
  constexpr std::int64_t kFloats = (std::int64_t{5} << 20) + 7;  // far from a power of two
  const auto held = [] {
    std::size_t pages = 0;
    std::size_t resident = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident;
    return resident * 4096;
  };
  const NamedTensors large{{"large", torch::ones(kFloats)}};
  const std::size_t before = held();
  ArrayBuffer buffer;
  buffer.copy(large);
  const std::size_t size = kFloats * 4;
  EXPECT_GE(buffer.capacity(), size);
  EXPECT_LT(buffer.capacity(), size + 4096);
  EXPECT_GE(held(), before + size * 9 / 10);

  buffer.copy({{"small", torch::ones(3)}});
  EXPECT_GE(buffer.capacity(), size) << "a state that becomes smaller for once does not move";
  EXPECT_EQ(buffer.bytes().size(), 12U);

  buffer = {};
  EXPECT_LT(held(), before + size / 2);
  buffer.copy(large);
  EXPECT_EQ(buffer.bytes().size(), size);
}

}  // namespace
}  // namespace ddprun
