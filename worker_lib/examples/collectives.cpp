// Every collective of a group, one after the other: what each rank gives, and what comes of it. Runs
// with any number of ranks, one included, over Gloo or NCCL.
//
//   ddprun --nproc-per-node=4 build/bin/collectives
//
// The main process prints one line per collective and ends with
//
//   all collectives gave what they should
#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "ddprun/log.h"
#include "ddprun/run.h"

namespace {

using Tensor = torch::Tensor;
using Tensors = std::vector<Tensor>;

// A value that is no number: sent as it is, because it names its fields.
struct Score {
  std::string model;
  std::map<std::string, double> metrics;

  template <typename Fields>
  void fields(Fields& field) {
    field(model, metrics);
  }
};

std::string text_of(const Tensor& tensor) {
  const Tensor numbers = tensor.to(torch::kCPU, torch::kInt64).contiguous();
  return c10::str(at::IntArrayRef(numbers.const_data_ptr<std::int64_t>(),
                                  static_cast<std::size_t>(numbers.numel())));
}

template <typename T>
std::string text_of(const T& value) {
  return c10::str(value);
}

template <typename T>
std::string text_of(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : " ") + text_of(value);
  return text.empty() ? "nothing" : text;
}

class Tour {
 public:
  explicit Tour(ddprun::Context& context)
      : context_(context), rank_(context.rank()), size_(context.size()) {}

  bool run() {
    tensors();
    messages();
    values();
    objects();
    one_for_all();
    smaller_groups();
    // One wrong result anywhere is one too many.
    return context_.all_of(is_right_);
  }

 private:
  // `start` and the number after it, on this rank's device.
  Tensor pair(std::int64_t start) const {
    return torch::arange(start, start + 2, torch::dtype(torch::kInt64).device(context_.device()));
  }
  int last() const { return size_ - 1; }

  void show(const char* name, const std::string& result, bool is_right) {
    is_right_ = is_right_ && is_right;
    if (!is_right) ddprun::log::error(name, " gave ", result);
    if (context_.is_main_process()) std::printf("%-20s %s\n", name, result.c_str());
  }

  void tensors() {
    const std::int64_t sum_of_ranks = size_ * (size_ - 1) / 2;
    Tensor tensor = pair(10 * rank_);
    context_.broadcast(tensor, last());
    show("broadcast", text_of(tensor), tensor.equal(pair(10 * last())));

    tensor = pair(10 * rank_);
    context_.all_reduce(tensor);
    show("all_reduce", text_of(tensor), tensor[0].item<int>() == 10 * sum_of_ranks);

    tensor = pair(10 * rank_);
    context_.all_reduce(tensor, ddprun::ReduceOp::MAX);
    show("all_reduce MAX", text_of(tensor), tensor.equal(pair(10 * last())));

    tensor = pair(10 * rank_);
    context_.reduce(tensor, /*root=*/0);
    show("reduce", text_of(tensor), rank_ != 0 || tensor[0].item<int>() == 10 * sum_of_ranks);

    Tensors all = context_.gather(pair(10 * rank_), /*root=*/0);
    show("gather", text_of(all), rank_ != 0 ? all.empty() : all.back().equal(pair(10 * last())));

    auto pending = context_.all_gather_async(pair(10 * rank_));
    all = pending.wait();  // after whatever else there is to do
    show("all_gather", text_of(all), all.back().equal(pair(10 * last())));

    all = context_.all_gather_uneven(pair(rank_).repeat(rank_ + 1));
    show("all_gather_uneven", text_of(all), all.back().size(0) == 2 * size_);

    Tensors parts;
    for (int to = 0; to < size_ && rank_ == 0; ++to) parts.push_back(pair(10 * to));
    tensor = pair(0);
    context_.scatter(tensor, parts, /*root=*/0);
    show("scatter", text_of(tensor), tensor.equal(pair(10 * rank_)));

    tensor = context_.reduce_scatter(torch::ones({size_, 2}, context_.device()));
    show("reduce_scatter", text_of(tensor),
         tensor.numel() == 2 && tensor[0][1].item<int>() == size_);

    tensor = context_.all_to_all(torch::full({size_}, rank_, context_.device()));
    show("all_to_all", text_of(tensor), tensor[last()].item<int>() == last());

    parts.clear();
    for (int to = 0; to < size_; ++to) parts.push_back(pair(rank_).repeat(to));
    all = context_.all_to_all(parts);
    show("all_to_all uneven", text_of(all), all.back().size(0) == 2 * rank_);

    context_.barrier();
    show("barrier", "everybody is here", true);
  }

  void messages() {
    if (size_ == 1) return show("send, recv", "nobody to send to", true);
    Tensor came = pair(0);
    const int before = (rank_ + last()) % size_;
    auto sent = context_.send_async(pair(10 * rank_), (rank_ + 1) % size_);
    context_.recv(came, before);
    sent.wait();
    show("send, recv", text_of(came) + " from rank " + std::to_string(before),
         came.equal(pair(10 * before)));
  }

  void values() {
    const double mean = context_.all_reduce(rank_ + 0.5, ddprun::ReduceOp::AVG);
    show("all_reduce value", std::to_string(mean), mean == size_ / 2.0);
    const std::string word = context_.broadcast("from rank " + std::to_string(rank_), last());
    show("broadcast string", word, word == "from rank " + std::to_string(last()));
    std::vector<int> expected(static_cast<std::size_t>(size_));
    std::iota(expected.begin(), expected.end(), 0);
    const std::vector<int> ranks = context_.all_gather(rank_);
    show("all_gather values", text_of(ranks), ranks == expected);
    const auto words = context_.gather(std::string(static_cast<std::size_t>(rank_ + 1), 'x'));
    show("gather strings", text_of(words), rank_ != 0 || words.back().size() == expected.size());
  }

  void objects() {
    const Score mine{"net" + std::to_string(rank_), {{"f1", 0.5 * rank_}}};
    const Score best = context_.broadcast_object(mine, last());
    show("broadcast_object", best.model, best.metrics.at("f1") == 0.5 * last());
    std::string names;
    const auto all = context_.all_gather_object(mine);
    for (const Score& score : all) names += score.model + " ";
    show("all_gather_object", names, all.size() == static_cast<std::size_t>(size_));
    show("gather_object", std::to_string(context_.gather_object(mine).size()) + " scores", true);
  }

  void one_for_all() {
    const std::string found =
        context_.run_on(last(), [&] { return "found by " + std::to_string(rank_); });
    show("run_on", found, found == "found by " + std::to_string(last()));
    const int order = context_.main_process_first([&] { return rank_; });
    show("main_process_first", "the main process was first", order == rank_);
  }

  void smaller_groups() {
    std::vector<int> evens;
    for (int rank = 0; rank < size_; rank += 2) evens.push_back(rank);
    const auto group = context_.new_group(evens);
    const int sum = group ? group->all_reduce(rank_) : 0;
    show("new_group", std::to_string(evens.size()) + " ranks, whose sum is " + std::to_string(sum),
         !group || sum == std::accumulate(evens.begin(), evens.end(), 0));
  }

  ddprun::Context& context_;
  int rank_;
  int size_;
  bool is_right_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  ddprun::ContextOptions options{.nproc_per_node = 1};  // or DDPRUN_NPROC_PER_NODE
  try {
    if (argc > 1) options.backend = ddprun::backend_from(argv[1]);
  } catch (const ddprun::UsageError& error) {
    std::fprintf(stderr, "collectives: %s\n", error.what());
    return 2;
  }
  return ddprun::run(
      argc, argv,
      [](ddprun::Context& context) {
        const bool is_right = Tour(context).run();
        if (context.is_main_process() && is_right) {
          std::printf("all collectives gave what they should\n");
        }
        return is_right ? 0 : 1;
      },
      options);
}
