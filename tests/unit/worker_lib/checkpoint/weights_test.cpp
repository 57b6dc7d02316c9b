#include "ddprun/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "ddprun/checkpoint.h"
#include "tests/unit/worker_lib/checkpoint/pack.h"
#include "tests/unit/worker_lib/group_of_threads.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using torch::Tensor;

// Whatever tensors a test wants, by name.
struct Bag : torch::nn::Module {
  explicit Bag(const std::map<std::string, Tensor>& tensors) {
    for (const auto& [name, tensor] : tensors) register_buffer(name, tensor);
  }
};

// The same as tensors() in tests/compat/weights_files.py.
std::map<std::string, Tensor> all_types() {
  const Tensor numbers = torch::arange(7, torch::kInt64);
  const std::pair<const char*, torch::ScalarType> types[] = {
      {"float32", torch::kFloat32},       {"float64", torch::kFloat64},
      {"float16", torch::kFloat16},       {"bfloat16", torch::kBFloat16},
      {"int64", torch::kInt64},           {"int32", torch::kInt32},
      {"int16", torch::kInt16},           {"int8", torch::kInt8},
      {"uint8", torch::kUInt8},           {"uint16", torch::kUInt16},
      {"uint32", torch::kUInt32},         {"uint64", torch::kUInt64},
      {"complex64", torch::kComplexFloat}};
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, type] : types) tensors[name] = numbers.to(type);
  tensors["float8_e4m3fn"] = numbers.to(torch::kFloat32).to(torch::kFloat8_e4m3fn);
  tensors["float8_e5m2"] = numbers.to(torch::kFloat32).to(torch::kFloat8_e5m2);
  tensors["bool"] =
      numbers.remainder(2).to(torch::kBool);  // 7 bytes: whatever follows is not aligned
  tensors["transposed"] = torch::arange(6, torch::kFloat32).view({2, 3}).t();
  tensors["scalar"] = torch::scalar_tensor(5, torch::kInt64);
  tensors["empty"] = torch::empty({0, 4});
  return tensors;
}

Tensor bits(const Tensor& tensor) { return tensor.contiguous().flatten().view(torch::kUInt8); }

void expect_all_types(const Bag& bag) {
  for (const auto& [name, tensor] : all_types()) {
    EXPECT_TRUE(torch::equal(bits(bag.named_buffers()[name]), bits(tensor))) << name;
  }
}

Bag zeros_of_all_types() {
  auto tensors = all_types();
  for (auto& entry : tensors) entry.second = torch::zeros_like(entry.second);
  return Bag(tensors);
}

bool run_python(const std::string& action, const std::string& file) {
  const std::string command =
      std::string(DDPRUN_PYTHON " " DDPRUN_WEIGHTS_SCRIPT) + " " + action + " " + file;
  return std::system(command.c_str()) == 0;
}

std::string error_of(const std::string& file, const BareModule& model) {
  try {
    load_weights(file, model);
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(file));
    return error.what();
  }
  return "none";
}

TEST(Weights, EveryTypeComesBack) {
  const test::TempFolder folder;
  save_weights(Bag(all_types()), folder.file("weights.safetensors"));
  const Bag loaded = zeros_of_all_types();
  load_weights(folder.file("weights.safetensors"), loaded);
  expect_all_types(loaded);
}

TEST(Weights, PythonOpensOurs) {
  if (!std::filesystem::exists(DDPRUN_PYTHON)) GTEST_SKIP() << "no " DDPRUN_PYTHON;
  const test::TempFolder folder;
  save_weights(Bag(all_types()), folder.file("weights.safetensors"));
  EXPECT_TRUE(run_python("check", folder.file("weights.safetensors")));
}

TEST(Weights, PythonsAreOpened) {
  if (!std::filesystem::exists(DDPRUN_PYTHON)) GTEST_SKIP() << "no " DDPRUN_PYTHON;
  const test::TempFolder folder;
  ASSERT_TRUE(run_python("write", folder.file("weights.safetensors")));
  const Bag loaded = zeros_of_all_types();
  load_weights(folder.file("weights.safetensors"), loaded);
  expect_all_types(loaded);
}

// Another program's layout: our own never puts an array where it cannot be used in place.
TEST(Weights, ArraysThatAreNotAlignedAreRead) {
  const test::TempFolder folder;
  const float numbers[] = {1.5F, -2.0F};
  test::write(
      folder.file("weights.safetensors"),
      safetensors::pack(
          {{},
           {{"odd", "U8", {1}, "x"},
            {"numbers", "F32", {2}, {reinterpret_cast<const char*>(numbers), sizeof numbers}}}}));
  const Bag bag({{"odd", torch::zeros({1}, torch::kUInt8)}, {"numbers", torch::zeros({2})}});
  load_weights(folder.file("weights.safetensors"), bag);
  EXPECT_TRUE(torch::equal(bag.named_buffers()["numbers"], torch::tensor({1.5F, -2.0F})));
}

TEST(Weights, OfACheckpointAreTheModelsAlone) {
  test::run_ranks(1, [](Context& context) {
    const test::TempFolder folder;
    torch::nn::Linear trained(3, 2);
    torch::optim::SGD optimizer(trained->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    trained->forward(torch::ones({1, 3})).sum().backward();
    optimizer.step();
    Checkpointer(context, folder.path()).save(trained, optimizer, {});
    torch::nn::Linear loaded(3, 2);
    load_weights(folder.file("latest.safetensors"), loaded);
    EXPECT_TRUE(torch::equal(loaded->weight, trained->weight));
    EXPECT_TRUE(torch::equal(loaded->bias, trained->bias));
  });
}

TEST(Weights, OfAWrappedPythonModuleAreTheBareOnes) {
  const test::TempFolder folder;
  const std::string file = folder.file("weights.safetensors");
  torch::nn::Sequential wrapped;
  wrapped->push_back("module", torch::nn::Linear(3, 2));
  save_weights(wrapped, file);
  torch::nn::Linear bare(3, 2);
  load_weights(file, bare);
  EXPECT_TRUE(torch::equal(bare->weight, wrapped->named_parameters()["module.weight"]));
  load_weights(file, wrapped);  // whose names these are
}

TEST(Weights, WhatDoesNotFitIsNamedAndChangesNothing) {
  const test::TempFolder folder;
  const std::string file = folder.file("weights.safetensors");
  const Bag saved({{"a", torch::ones({2})}, {"b", torch::ones({2})}, {"c", torch::ones({2})}});
  save_weights(saved, file);
  const Bag other(
      {{"a", torch::zeros({3})}, {"b", torch::zeros({2}, torch::kHalf)}, {"d", torch::zeros({2})}});
  const std::string error = error_of(file, other);
  EXPECT_THAT(error, HasSubstr("lacks d;"));
  EXPECT_THAT(error, HasSubstr("besides c;"));
  EXPECT_THAT(error, HasSubstr("a (file: [2] float, model: [3] float)"));
  EXPECT_THAT(error, HasSubstr("b (file: [2] float, model: [2] c10::Half)"));
  EXPECT_EQ(other.named_buffers()["d"].sum().item<float>(), 0);
}

TEST(Weights, AFileThatIsDamagedOrNotThereIsNamed) {
  const test::TempFolder folder;
  const std::string file = folder.file("weights.safetensors");
  const Bag bag({{"a", torch::ones({1000})}});
  EXPECT_THAT(error_of(file, bag), HasSubstr("No such file"));
  save_weights(bag, file);
  std::string bytes = test::read(file);
  test::write(file, bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(error_of(file, bag), HasSubstr("cut off"));
  bytes[bytes.size() - 100] ^= 1;
  test::write(file, bytes);
  EXPECT_THAT(error_of(file, bag), HasSubstr("checksum"));
  test::write(file, "weights");
  EXPECT_THAT(error_of(file, bag), HasSubstr("cut off"));
  EXPECT_THAT(error_of(folder.path(), bag), HasSubstr("not a regular file"));
}

TEST(Weights, WhatSafetensorsHasNoFormForIsRefused) {
  const test::TempFolder folder;
  const std::string file = folder.file("weights.safetensors");
  EXPECT_THROW(save_weights(Bag({{"a", torch::zeros({2}, torch::kComplexDouble)}}), file),
               UsageError);
  EXPECT_THROW(save_weights(Bag({{"a", torch::eye(2).to_sparse()}}), file), UsageError);
}

TEST(Weights, ReplaceOnlyARegularFileAndGoThroughALink) {
  const test::TempFolder folder;
  torch::nn::Linear linear(2, 2);
  const auto thrown = [&](const std::string& path) {
    try {
      save_weights(linear, path);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("saved");
  };
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_THAT(thrown(folder.file("pipe")), testing::HasSubstr("is not a regular file"));
  EXPECT_THAT(thrown(folder.path()), testing::HasSubstr("is not a regular file"));
  save_weights(linear, folder.file("weights"));
  std::filesystem::create_symlink("weights", folder.file("link"));
  linear->weight.detach().zero_();
  save_weights(linear, folder.file("link"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  linear->weight.detach().fill_(1);
  load_weights(folder.file("weights"), linear);
  EXPECT_EQ(linear->weight.abs().sum().item<float>(), 0);
}

TEST(Weights, ATensorMayNotHaveTheNameOfTheMetadata) {
  struct Net : torch::nn::Module {
    Net() { register_buffer("__metadata__", torch::ones(2)); }
  };
  const test::TempFolder folder;
  EXPECT_THROW(save_weights(Net(), folder.file("w")), UsageError);
}

}  // namespace
}  // namespace ddprun
